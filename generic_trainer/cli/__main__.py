"""`python -m generic_trainer.cli`, for environments without the command on their path."""

import sys

from generic_trainer.cli import main

sys.exit(main())
