"""`generic-trainer doctor`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from generic_trainer.cli._status import FAILED, PASSED
from generic_trainer.doctor import Symptom, examine

__all__ = ["add_doctor"]

_STYLES = {"ok": "green", "missing": "dim", "warn": "yellow", "fail": "bold red"}


def add_doctor(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, Keras mode and GPUs, what is missing and how to get it",
        description="Imports what GenericTrainer needs, each part in turn, in another process.",
    )
    parser.set_defaults(run=_doctor)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _doctor(options: argparse.Namespace) -> int:
    symptoms = _examine_with_progress()
    if options.json:
        print(json.dumps([dataclasses.asdict(symptom) for symptom in symptoms], indent=2))
    else:
        _print(symptoms)
    return FAILED if any(symptom.status == "fail" for symptom in symptoms) else PASSED


def _examine_with_progress() -> list[Symptom]:
    from rich.console import Console

    with Console(stderr=True).status("Importing TensorFlow, TFX and their parts ..."):
        return list(examine())


def _print(symptoms: Sequence[Symptom]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("status", "subject"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold")
    for symptom in symptoms:
        found = Text(symptom.found)
        if symptom.remedy:
            found.append(f"\n→ {symptom.remedy}", style="cyan")
        status = Text(symptom.status.upper(), style=_STYLES[symptom.status])
        table.add_row(status, Text(symptom.subject), found)
    Console().print(table)
