"""`python -m autotune`: the command line."""

from __future__ import annotations

import sys

from autotune.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
