"""`python -m generic_trainer`: the command line."""

import sys

from generic_trainer.cli import main

sys.exit(main())
