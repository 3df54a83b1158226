"""``python -m desync``: the same as the command ``desync``."""

from __future__ import annotations

import sys

from desync.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
