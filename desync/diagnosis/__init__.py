"""From evidence to findings: pure functions."""
