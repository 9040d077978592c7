"""`python -m tfmp` is the command `tfmp`."""

import sys

from tfmp.cli import main

sys.exit(main())
