"""`python -m generic_trainer.cli`, where the command itself is not on the path."""

import sys

from generic_trainer.cli import main

sys.exit(main())
