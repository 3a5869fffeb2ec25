"""The command `generic-trainer`, and two of its commands as functions, `run` and `validate`.

::

    generic-trainer run my_model.py --train 'train/*.gz' --eval 'eval/*.gz' --output runs
    generic-trainer predict MODEL_DIR rows.csv
    generic-trainer validate MODEL_DIR --examples 'eval/*.gz' --label tips --html report.html
    generic-trainer publish ROOT/NODE/model_run/7.failed --contract corrected.yaml
    generic-trainer validate OLD_MODEL_DIR NEW_MODEL_DIR
    generic-trainer verify MODEL_DIR --key public.pem
    generic-trainer explain session
    generic-trainer init my_project --from my.csv --label price
    generic-trainer migrate pipeline.py trainer.py --write
    generic-trainer doctor

In a shell, ``eval "$(register-python-argcomplete generic-trainer)"`` completes words after a tab.

Exit status: 0 success, 1 failure, 2 a wrong call. `run` and `publish` also exit with the codes of
`generic_trainer.launchers`.
"""

import argparse
import contextlib
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from generic_trainer import __version__
from generic_trainer._core.files import DISK_FULL
from generic_trainer._core.lazy import lazy_names
from generic_trainer.cli._options import reject_unknown
from generic_trainer.errors import ConfigurationError, GenericTrainerError

if TYPE_CHECKING:
    from generic_trainer.cli._run import RunResult, run
    from generic_trainer.cli._validate import validate

__all__ = ["RunResult", "main", "run", "validate"]

__getattr__, __dir__ = lazy_names(__name__, {"_run": "RunResult run", "_validate": "validate"})

_COMMANDS = (
    *("init", "run", "predict", "validate", "verify", "explain", "publish", "migrate", "doctor"),
)
_WRONG_CALL = 2
_CLOSED_OUTPUT = 128 + signal.SIGPIPE  # the status that shells report for it
_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit status.

    Args:
        arguments: the words after the command's name; None for those of this process.
    """
    try:
        try:
            return _main(arguments)
        finally:
            print(end="", flush=True)  # Python's own flush at exit would only print a traceback
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        # `generic-trainer ... | head` has read enough. The buffered rest is discarded.
        _discard_output()
        return _CLOSED_OUTPUT
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _discard_output()
        with contextlib.suppress(OSError):
            print(f"generic-trainer: {error}: make room, and run it again.", file=sys.stderr)
        return os.EX_IOERR


def _discard_output() -> None:
    """Discards the buffered output, and all that follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_is_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _main(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next(iter(words), "")
    try:
        # The doctor starts even if packages of other commands are missing.
        parser = command_parser(["doctor"] if name == "doctor" else _COMMANDS)
        if "_ARGCOMPLETE" in os.environ:  # called by the shell, after a tab
            import argcomplete

            argcomplete.autocomplete(parser)
        options, unknown = parser.parse_known_args(words)
        reject_unknown(options, unknown)
        return int(options.run(options))
    except GenericTrainerError as error:
        print(f"generic-trainer {name}: {error}", file=sys.stderr)
        is_wrong_call = isinstance(error, ConfigurationError)
        if is_wrong_call and error.__cause__ is None:
            return _WRONG_CALL
        from generic_trainer.launchers import exit_code

        status = exit_code(error)
        return _WRONG_CALL if is_wrong_call and status != os.EX_IOERR else status
    except KeyboardInterrupt:
        resumes = ", and it resumes from its checkpoint, if there is one" if name == "run" else ""
        print(f"\ngeneric-trainer {name}: interrupted; start it again{resumes}.", file=sys.stderr)
        return _INTERRUPTED
    except ModuleNotFoundError as error:  # that of a user's module would be a ModuleFileError
        print(
            f"generic-trainer {name}: {error}: `generic-trainer doctor` lists missing packages and "
            "how to install them",
            file=sys.stderr,
        )
        return 1


def outcome_of_run(words: Sequence[str]) -> dict[str, Any]:
    """Runs `generic-trainer run`, for the step in a pipeline of KFP.

    Args:
        words: its arguments.

    Returns:
        `exit_status`, `error`, and where they exist `model`, `model_run`, `report` and `metrics`.

    Raises:
        ConfigurationError: the arguments are wrong.
    """
    from generic_trainer.cli._run import outcome_of

    return outcome_of(command_parser(["run"]).parse_args(["run", *words]))


def command_parser(names: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """Returns the parser of some commands; documents are made from that of all."""
    parser = argparse.ArgumentParser(
        prog="generic-trainer", description="Trains, checks and publishes models of TensorFlow."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name in names:
        importlib.import_module(f"{__name__}._{name}").add_to(commands)
    return parser
