"""`python -m kernelwright` is the command `kernelwright`."""

import sys

from kernelwright.cli import main

sys.exit(main())
