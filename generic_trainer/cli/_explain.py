"""`generic-trainer explain`: why a check exists, what fails it, and how to silence it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError


def add_explain(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="tell why a check exists, what fails it, and how to silence it",
        description="Tells what a report means by a check. Without a name: the list of all checks.",
    )
    parser.set_defaults(run=_explain)
    name = parser.add_argument("check", metavar="CHECK", nargs="?", help="its name in a report")
    name.completer = lambda **_: _checks()  # of argcomplete
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _checks() -> dict[str, Any]:
    from generic_trainer.validation import all_checks  # they import NumPy

    return {check.name: check for check in all_checks()}


def _explain(options: argparse.Namespace) -> int:
    checks = _checks()
    if options.check and options.check not in checks:
        raise ConfigurationError(
            f"there is no check {options.check!r}{did_you_mean(options.check, checks)}; without a "
            "name, this command lists them"
        )
    chosen = [checks[options.check]] if options.check else list(checks.values())
    if options.json:
        print(json.dumps([_plain(check) for check in chosen], indent=2))
    elif options.check:
        print("\n\n".join(_paragraphs(chosen[0])))
    else:
        width = max(map(len, checks))
        for check in chosen:
            print(f"{check.name:{width}}  {check.summary}")
    return 0


def _paragraphs(check: Any) -> list[str]:
    after = f"It runs after {', '.join(check.needs)}, if all is well there." if check.needs else ""
    told = [f"{check.name}: {check.summary}", check.explanation, check.how_to_silence, after]
    return [paragraph for paragraph in told if paragraph]


def _plain(check: Any) -> dict[str, Any]:
    return {
        "name": check.name,
        "summary": check.summary,
        "explanation": check.explanation,
        "how_to_silence": check.how_to_silence,
        "needs": check.needs,
        "is_advisory": check.is_advisory,
    }
