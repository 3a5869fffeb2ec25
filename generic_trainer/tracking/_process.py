"""The process of a tracker: it is told of the run by lines of JSON, and hands that on.

It is a process of its own so that a library which hangs, crashes or asks for other versions than
TensorFlow is loaded with does nothing to the training, and can be killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from generic_trainer.tracking._tracker import (
    Metric,
    Outcome,
    Signature,
    TrackedRun,
    TrackedTrial,
    Tracker,
)
from generic_trainer.tracking._tracking import trackers

_NAMES_OF_EXTRAS = ("mlflow", "vertex", "wandb")


def main(name: str, lines: Iterable[str]) -> int:
    """Drives a tracker, and returns the exit status.

    Args:
        name: of its entry point.
        lines: `{"start": ...}`, then `{"log": [...]}` as often as it takes, then `{"end": ...}`. A
            run that is killed ends them early.
    """
    try:
        tracker: Tracker = trackers()[name].load()()
        outcome = Outcome("killed")
        for line in lines:
            outcome = _handle(tracker, json.loads(line)) or outcome
        tracker.end(outcome)
    except ModuleNotFoundError as error:
        print(f"{error}{_how_to_install(name)}", file=sys.stderr)
        return 1
    except Exception as error:  # whatever the service's library raises
        text = " ".join(str(error).split()) or "no message"
        print(f"{type(error).__name__}: {text}", file=sys.stderr)
        return 1
    return 0


def _handle(tracker: Tracker, message: dict[str, Any]) -> Outcome | None:
    if "start" in message:
        tracker.start(TrackedRun(**message["start"]))
    elif "log" in message:
        tracker.log([Metric(*values) for values in message["log"]])
    else:
        values = message["end"]
        signature = values.pop("signature")
        return Outcome(
            signature=signature and Signature(**signature),
            trials=[TrackedTrial(**trial) for trial in values.pop("trials")],
            **values,
        )
    return None


def _how_to_install(name: str) -> str:
    return f": install the extra `{name}` of generic-trainer" if name in _NAMES_OF_EXTRAS else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin))
