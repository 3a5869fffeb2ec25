"""The command `generic-trainer`.

::

    generic-trainer run my_model.py --train 'train/*.gz' --eval 'eval/*.gz' --output runs
    generic-trainer validate MODEL_DIR --examples 'eval/*.gz' --label tips --html report.html
    generic-trainer publish ROOT/NODE/model_run/7.failed --contract corrected.yaml
    generic-trainer validate OLD_MODEL_DIR NEW_MODEL_DIR
    generic-trainer explain session
    generic-trainer init my_project
    generic-trainer migrate pipeline.py trainer.py --write
    generic-trainer cache --clear
    generic-trainer doctor

In a shell, ``eval "$(register-python-argcomplete generic-trainer)"`` completes words after a tab.

Exit status: 0 all is well, 1 it is not, 2 the call was wrong. `run` and `publish` tell more
failures apart, by the codes of `generic_trainer.launchers`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from generic_trainer import __version__
from generic_trainer.cli._cache import add_cache
from generic_trainer.cli._doctor import add_doctor
from generic_trainer.cli._explain import add_explain
from generic_trainer.cli._init import add_init
from generic_trainer.cli._migrate import add_migrate
from generic_trainer.cli._publish import add_publish
from generic_trainer.cli._run import add_run
from generic_trainer.cli._validate import add_validate
from generic_trainer.errors import ConfigurationError, GenericTrainerError
from generic_trainer.launchers import exit_code

__all__ = ["main"]

_WRONG_CALL = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status.

    Args:
        arguments: the words after the command's name; None for those of this process.
    """
    parser = command_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks, after a tab
        import argcomplete

        argcomplete.autocomplete(parser)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except GenericTrainerError as error:
        print(f"generic-trainer {options.command}: {error}", file=sys.stderr)
        return _WRONG_CALL if isinstance(error, ConfigurationError) else exit_code(error)
    except ModuleNotFoundError as error:  # of a user's module it would be a ModuleFileError
        print(
            f"generic-trainer {options.command}: {error}: `generic-trainer doctor` tells what is "
            "missing, and how to get it",
            file=sys.stderr,
        )
        return 1


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command, from which the documents are made too."""
    parser = argparse.ArgumentParser(prog="generic-trainer", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    add_init(commands)
    add_run(commands)
    add_validate(commands)
    add_explain(commands)
    add_publish(commands)
    add_migrate(commands)
    add_cache(commands)
    add_doctor(commands)
    return parser
