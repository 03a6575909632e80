"""`python -m fssl` is the command `fssl`."""

import sys

from fssl import main

if __name__ == "__main__":
    sys.exit(main())
