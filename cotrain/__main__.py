"""``python -m cotrain`` is ``cotrain``."""

import sys

from cotrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
