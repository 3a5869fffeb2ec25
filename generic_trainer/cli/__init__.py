"""The command `generic-trainer`.

::

    generic-trainer run my_model.py --train 'train/*.gz' --eval 'eval/*.gz' --output runs
    generic-trainer validate MODEL_DIR --examples 'eval/*.gz' --label tips --html report.html
    generic-trainer publish ROOT/NODE/model_run/7.failed --contract corrected.yaml
    generic-trainer cache --clear
    generic-trainer doctor

Exit status: 0 all is well, 1 it is not, 2 the call was wrong. `run` and `publish` tell more
failures apart, by the codes of `generic_trainer.launchers`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from generic_trainer import __version__
from generic_trainer.cli._cache import add_cache
from generic_trainer.cli._doctor import add_doctor
from generic_trainer.cli._publish import add_publish
from generic_trainer.cli._run import add_run
from generic_trainer.cli._validate import add_validate
from generic_trainer.errors import ConfigurationError

__all__ = ["main"]

_WRONG_CALL = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status.

    Args:
        arguments: the words after the command's name; None for those of this process.
    """
    options = command_parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ConfigurationError as error:
        print(f"generic-trainer {options.command}: {error}", file=sys.stderr)
        return _WRONG_CALL


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command, from which the documents are made too."""
    parser = argparse.ArgumentParser(prog="generic-trainer", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    add_run(commands)
    add_validate(commands)
    add_publish(commands)
    add_cache(commands)
    add_doctor(commands)
    return parser
