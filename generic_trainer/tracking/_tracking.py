"""`Tracking`: the tracker of a run, its address and its options."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

import pydantic

from generic_trainer._core.options import Options, Positive, Text, options
from generic_trainer._core.texts import describe, did_you_mean, shown
from generic_trainer.errors import ConfigurationError, raise_problems

# Entry points of trackers; pyproject.toml registers those of this package.
GROUP = "generic_trainer.trackers"


@options(frozen=True, kw_only=True)
class Tracking(Options):
    """A tracker that gets parameters, metrics, report and model of a run.

    Attributes:
        to: `"mlflow"`, `"wandb"`, `"vertex"`, or the name of an entry point of the group
            `generic_trainer.trackers` that some distribution has registered.
        uri: MLflow's tracking URI, where None leaves it to `MLFLOW_TRACKING_URI`; the address of a
            W&B server, where None tracks offline, into the ModelRun, for `wandb sync`; on Vertex AI
            `"projects/PROJECT/locations/REGION"`. Do not put passwords here, because the pipeline
            stores it: MLflow and W&B read them from the environment.
        experiment: the experiment, which W&B calls a project. It is created if missing.
        run: the name of the run; None names it after module and execution.
        model: whether the tracker gets the published model too, and not only its signature.
        timeout_s: how long, in seconds, a finished run waits for the tracker. A model of many
            gigabytes needs more.

    Raises:
        ConfigurationError: values are wrong; all of them are listed.
    """

    to: Text
    uri: str | None = None
    experiment: Text = "generic-trainer"
    run: Text | None = None
    model: bool = True
    timeout_s: Positive = 30.0

    @pydantic.model_validator(mode="after")
    def _check(self) -> Tracking:
        problems, known = [], trackers()
        if self.to not in known:
            got = f"{shown(self.to)}{did_you_mean(self.to, known)}"
            problems.append(f"to must be one of {sorted(known)}, got {got}")
        if self.to == "vertex" and (self.uri or "").split("/")[::2] != ["projects", "locations"]:
            problems.append(
                f'uri must be "projects/PROJECT/locations/REGION", got {describe(self.uri)}'
            )
        raise_problems(ConfigurationError, "Tracking", problems)
        return self

    @classmethod
    def parse(cls, value: Tracking | str) -> Tracking:
        """Returns the tracking for a string such as `"mlflow:http://host:5000"`.

        Args:
            value: `to`, or `to:uri`, or a JSON object of the fields; or a tracking.

        Raises:
            ConfigurationError: the value is not one of these, or its fields are wrong.
        """
        if isinstance(value, Tracking):
            return value
        if not isinstance(value, str):
            raise ConfigurationError(
                f'tracking must be a Tracking(...) or a string such as "mlflow:URI", but got '
                f"{describe(value)}."
            )
        if value.lstrip().startswith("{"):
            return cls.from_json(value)
        to, _, uri = value.partition(":")
        return cls(to=to, uri=uri or None)


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
    """Returns a JSON list that `parse_trackings` reads; None if there are no trackings."""
    trackings = parse_trackings(value)
    return json.dumps([each.to_json() for each in trackings]) if trackings else None


def trackers() -> dict[str, importlib.metadata.EntryPoint]:
    """Returns name → entry point of the installed trackers."""
    return {each.name: each for each in importlib.metadata.entry_points(group=GROUP)}
