"""From evidence to findings: pure functions.

It reads no file and no clock and prints nothing; the same evidence always gives the same diagnosis.
"""

from desync.diagnosis.verdict import diagnose

__all__ = ["diagnose"]
