"""Options of the commands: declared in docstrings, checked before TensorFlow is imported."""

import argparse
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError, raise_problems

_OPTION = re.compile(r"(?ms)^    (\S.*?): (.+?)$(?=\n    \S|\Z)")


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], **settings: Mapping[str, Any]
) -> None:
    """Adds a command that its function declares: the docstring is the help, as in this example.

    ::

        The line in the list of commands.

        The description of the command.

        Options:
            name NAME: a positional argument
            --language CODE: an option
            --loud: a flag

    Args:
        commands: the subparsers of the program.
        run: `_name`, a function that runs the command and returns the exit status.
        **settings: option → further arguments of `add_argument`, and `completer` of argcomplete.
    """
    summary, description, options = (inspect.getdoc(run) or "").split("\n\n")
    name = run.__name__.strip("_")
    parser = commands.add_parser(name, help=summary.rstrip("."), description=description)
    parser.set_defaults(run=run, parser=parser)
    for words, text in _OPTION.findall(options):
        word, _, metavar = words.partition(" ")
        keywords: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        keywords.update(settings.get(word.strip("-").replace("-", "_"), {}))
        completer = keywords.pop("completer", None)
        action = parser.add_argument(word, help=" ".join(text.split()), **keywords)
        action.completer = completer


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
