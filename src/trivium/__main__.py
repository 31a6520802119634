"""`python -m trivium` is the command `trivium`."""

import sys

from trivium.cli import main

sys.exit(main())
