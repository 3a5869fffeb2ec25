"""Declaring commands, checks of their options before TensorFlow is imported, and that import."""

import argparse
import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.texts import describe, did_you_mean
from generic_trainer.errors import ConfigurationError, raise_problems


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], summary: str, description: str
) -> argparse.ArgumentParser:
    """Adds a command and returns its parser, to which the caller adds the options.

    Args:
        commands: the subparsers of the program.
        run: `_name`, a function that runs the command and returns the exit status.
        summary: the line in the list of commands.
        description: the paragraph above the options in the help.
    """
    name = run.__name__.strip("_")
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def reject_unknown(options: argparse.Namespace, unknown: Sequence[str]) -> None:
    """Exits with usage and near match if the command does not have some of the given options."""
    if unknown:
        known = re.findall(r"--[\w-]+", options.parser.format_usage())
        near = did_you_mean(unknown[0].partition("=")[0], known)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")


def option(name: str) -> str:
    """Returns the word of an option; the name of an argument without `--` is in capitals."""
    return name if name.isupper() else f"--{name.replace('_', '-')}"


def require_files(named: Callable[[str], str] = option, /, **paths: str | None) -> None:
    """Checks that local files and directories exist; remote ones are checked when they are read.

    Args:
        named: returns what the user calls an option.
        **paths: option → given path.

    Raises:
        ConfigurationError: some are missing; lists all of them.
    """
    problems = [
        f"{named(name)}: {path} does not exist"
        for name, path in paths.items()
        if path and not is_remote(path) and not os.path.exists(path)
    ]
    raise_problems(ConfigurationError, "wrong options", problems)


def require_paths(**values: Any) -> None:
    """Checks that arguments are paths, and no tables in memory.

    Raises:
        ConfigurationError: some are not; lists all of them.
    """
    problems = []
    for name, value in values.items():
        if not isinstance(value, str | os.PathLike | None):
            problems.append(f"{name}: expected a path, got {describe(value)}")
            if hasattr(value, "to_csv"):
                problems[-1] += "; write it first, with table.to_csv('table.csv', index=False)"
    raise_problems(ConfigurationError, "wrong arguments", problems)


def quiet_libraries(verbose: bool = False) -> None:
    """Hides what TensorFlow's C++ code and Google's clients say: nobody can act on it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "2")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"google\.")


@contextlib.contextmanager
def hidden_stderr() -> Iterator[None]:
    """Hides what TensorFlow's libraries say while they load, at any log level.

    TensorFlow 2.16 prints errors as it registers CUDA's factories twice, and 2.21 logs before it
    reads its log level.
    """
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
