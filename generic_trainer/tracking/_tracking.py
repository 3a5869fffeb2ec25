"""`Tracking`: which tracker a run is told to, and where that is."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.texts import describe, did_you_mean, is_number, parse_json, shown
from generic_trainer.errors import ConfigurationError, raise_problems

# Of the entry points that are trackers; those of this package are in setup.py.
GROUP = "generic_trainer.trackers"
_TEXTS = {"to": False, "uri": True, "experiment": False, "run": True}  # → whether it may be None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where a run's parameters, metrics, report and model are tracked.

    Attributes:
        to: `"mlflow"`, `"wandb"`, `"vertex"`, or the name of an entry point of the group
            `generic_trainer.trackers` that some distribution has registered.
        uri: MLflow's tracking URI, where None leaves it to `MLFLOW_TRACKING_URI`; the address of a
            W&B server, where None tracks offline, into the ModelRun, for `wandb sync`; on Vertex AI
            `"projects/PROJECT/locations/REGION"`. Passwords do not belong here, for the pipeline
            keeps it: MLflow and W&B take them from the environment.
        experiment: the experiment, which W&B calls a project. It is made if it is not there.
        run: what the run is called; None names it by module and execution.
        model: whether the tracker gets the published model too, and not only its signature.
        timeout_s: how long, in seconds, the run waits for the tracker when it is over. A model of
            many gigabytes needs more.

    Raises:
        ConfigurationError: values are wrong; all of them are listed.
    """

    to: str
    uri: str | None = None
    experiment: str = "generic-trainer"
    run: str | None = None
    model: bool = True
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        problems = []
        for name, may_be_none in _TEXTS.items():
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (may_be_none and value is None):
                problems.append(f"{name} must be a text, got {describe(value)}")
        known = trackers()
        if isinstance(self.to, str) and self.to not in known:
            near = did_you_mean(self.to, known)
            problems.append(f"to must be one of {sorted(known)}, got {shown(self.to)}{near}")
        if not isinstance(self.model, bool):
            problems.append(f"model must be True or False, got {describe(self.model)}")
        if not is_number(self.timeout_s) or self.timeout_s <= 0:
            problems.append(f"timeout_s must be a positive number, got {describe(self.timeout_s)}")
        if self.to == "vertex" and (self.uri or "").split("/")[::2] != ["projects", "locations"]:
            problems.append(
                f'uri must be "projects/PROJECT/locations/REGION", got {describe(self.uri)}'
            )
        raise_problems(ConfigurationError, "Tracking", problems)

    @classmethod
    def parse(cls, value: Tracking | str) -> Tracking:
        """Returns the tracking that a text such as `"mlflow:http://host:5000"` is short for.

        Args:
            value: `to`, or `to:uri`, or a JSON object of the fields; or what this returns.

        Raises:
            ConfigurationError: it is none of these, or its values are wrong.
        """
        if isinstance(value, Tracking):
            return value
        if not isinstance(value, str):
            raise ConfigurationError(
                f'tracking must be a Tracking(...) or a text such as "mlflow:URI", but got '
                f"{describe(value)}."
            )
        if not value.lstrip().startswith("{"):
            to, _, uri = value.partition(":")
            return cls(to=to, uri=uri or None)
        try:
            fields = parse_json(value)
        except ValueError as error:
            raise ConfigurationError(f"tracking: {shown(value)} is no JSON: {error}") from error
        known = [field.name for field in dataclasses.fields(cls)]
        problems = [
            f"there is no field {shown(name)}{did_you_mean(name, known)}"
            for name in fields
            if name not in known
        ]
        raise_problems(ConfigurationError, "Tracking", problems)
        return cls(**{"to": None, **fields})

    def to_json(self) -> str:
        """Returns a JSON object that `parse` reads, without what has its default value."""
        default = {field.name: field.default for field in dataclasses.fields(self)}
        values = dataclasses.asdict(self).items()
        return json.dumps({name: value for name, value in values if value != default[name]})


def parse_trackings(value: Any) -> tuple[Tracking, ...]:
    """Returns the trackings of `None`, one of them, or several.

    Raises:
        ConfigurationError: see `Tracking.parse`.
    """
    if value is None:
        return ()
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return tuple(map(Tracking.parse, value if several else [value]))


def trackings_to_json(value: Any) -> str | None:
    """Returns what `parse_trackings` takes as a JSON list; None for none of them."""
    trackings = parse_trackings(value)
    return json.dumps([each.to_json() for each in trackings]) if trackings else None


def trackers() -> dict[str, importlib.metadata.EntryPoint]:
    """Returns name → entry point of the installed trackers."""
    return {each.name: each for each in importlib.metadata.entry_points(group=GROUP)}
