"""`generic-trainer explain`: why a check exists, an example that fails, how to silence it."""

import argparse
import json
import sys
from typing import Any

from generic_trainer._core.texts import did_you_mean
from generic_trainer.cli._options import add_command
from generic_trainer.errors import ConfigurationError

_FIELDS = ("name", "summary", "explanation", "how_to_silence", "needs", "is_advisory")


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _explain,
        "Explain a check: its reason, an example that fails, how to silence it",
        "Explains a check of a report. Without a name: the list of all checks.",
    )
    check = parser.add_argument("check", metavar="CHECK", nargs="?", help="its name in a report")
    check.completer = lambda **_: _checks()  # type: ignore[attr-defined]  # of argcomplete
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _checks() -> dict[str, Any]:
    from generic_trainer.validation import all_checks  # they import NumPy

    return {check.name: check for check in all_checks()}


def _explain(options: argparse.Namespace) -> int:
    if sys.flags.optimize > 1:
        raise ConfigurationError("python -OO removes the texts of the checks: run it without -OO")
    checks = _checks()
    if options.check and options.check not in checks:
        raise ConfigurationError(
            f"unknown check {options.check!r}{did_you_mean(options.check, checks)}; without a "
            "name, this command lists all checks"
        )
    chosen = [checks[options.check]] if options.check else list(checks.values())
    if options.json:
        plain = [{name: getattr(check, name) for name in _FIELDS} for check in chosen]
        print(json.dumps(plain, indent=2))
    elif options.check:
        (check,) = chosen
        after = f"It runs after {', '.join(check.needs)}, if they pass." if check.needs else ""
        texts = f"{check.name}: {check.summary}", check.explanation, check.how_to_silence, after
        print("\n\n".join(filter(None, texts)))
    else:
        width = max(map(len, checks))
        for check in chosen:
            print(f"{check.name:{width}}  {check.summary}")
    return 0
