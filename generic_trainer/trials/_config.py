"""The configuration of an experiment, as Determined and PEDL had it in YAML."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Any

from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.trials._experiment_config import DEFAULT_SCHEDULING_UNIT, ExperimentConfig
from generic_trainer.trials._hyperparameters import Hyperparameter, parse_hyperparameters
from generic_trainer.trials._length import Length

__all__ = ["Experiment", "Searcher", "parse_experiment", "read_yaml"]

_POLICIES = ("best", "all", "none")
_SEARCHES = ("single", "random", "grid")
# These end bad trials early, which needs Determined's scheduler.
_ADAPTIVE = ("adaptive_simple", "adaptive_asha")
# YAML 1.2, which these files are written in, has floats without a point: 1e-4. PyYAML reads 1.1.
_FLOAT_1_2 = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Searcher:
    """How the hyperparameters of the trials are chosen.

    Attributes:
        max_length: how long each trial trains.
        name: "single", "random" or "grid".
        metric: the validation metric that trials are compared by; None if nothing is compared.
        smaller_is_better: whether the lowest is the best.
        max_trials: how many trials a random search runs.
    """

    max_length: Length
    name: str = "single"
    metric: str | None = None
    smaller_is_better: bool = True
    max_trials: int = 1

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a metric is the first, or strictly better than the best so far."""
        if best is None:
            return True
        return value < best if self.smaller_is_better else value > best


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment configuration, checked.

    Attributes:
        raw: the configuration as the user wrote it.
        hyperparameters: name → range or constant.
        searcher: how trials are chosen.
        scheduling_unit: batches in a training workload.
        min_validation_period: validate at least this often; None leaves it to the end.
        min_checkpoint_period: write a checkpoint at least this often.
        checkpoint_policy: which validations are followed by a checkpoint: "best", "all", "none".
        perform_initial_validation: validate before training.
        records_per_epoch: what turns epochs into batches; 0 if unknown.
        seed: of the experiment.
        slots: devices for each trial.
    """

    raw: Mapping[str, Any]
    hyperparameters: Mapping[str, Hyperparameter]
    searcher: Searcher
    scheduling_unit: int
    min_validation_period: Length | None
    min_checkpoint_period: Length | None
    checkpoint_policy: str
    perform_initial_validation: bool
    records_per_epoch: int
    seed: int
    slots: int


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """Checks an experiment configuration.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    problems: list[str] = []
    unit = _first(raw, "scheduling_unit", "batches_per_step", default=DEFAULT_SCHEDULING_UNIT)
    if not isinstance(unit, int) or unit < 1:
        problems.append(f"scheduling_unit must be a whole number of batches above 0, got {unit!r}")
        unit = DEFAULT_SCHEDULING_UNIT

    def attempt(parse: Any, *arguments: Any, default: Any = None, **options: Any) -> Any:
        try:
            return parse(*arguments, **options)
        except ConfigurationError as error:
            problems.append(str(error))
            return default

    def period(field: str) -> Length | None:
        if field not in raw:
            return None
        length = attempt(Length.parse, field, raw[field], batches_per_unit=unit)
        return length if length is None or length.count else None

    policy = raw.get("checkpoint_policy", "best")
    if policy not in _POLICIES:
        problems.append(f"checkpoint_policy must be one of {', '.join(_POLICIES)}, got {policy!r}")
    experiment = Experiment(
        raw=raw,
        hyperparameters=attempt(
            parse_hyperparameters, raw.get("hyperparameters") or {}, default={}
        ),
        searcher=attempt(_parse_searcher, raw.get("searcher") or {}, unit, default=None),
        scheduling_unit=unit,
        min_validation_period=period("min_validation_period"),
        min_checkpoint_period=period("min_checkpoint_period"),
        checkpoint_policy=policy,
        perform_initial_validation=bool(raw.get("perform_initial_validation", False)),
        records_per_epoch=int(raw.get("records_per_epoch") or 0),
        seed=ExperimentConfig(raw).experiment_seed(),
        slots=int((raw.get("resources") or {}).get("slots_per_trial") or 1),
    )
    raise_problems(ConfigurationError, "The experiment configuration", problems)
    return experiment


def _parse_searcher(raw: Mapping[str, Any], unit: int) -> Searcher:
    name = raw.get("name", "single")
    if name in _ADAPTIVE:
        _logger.warning(
            "searcher.name is %r: the search is random, and all trials train to the end.", name
        )
        name = "random"
    problems = []
    if name not in _SEARCHES:
        problems.append(f"searcher.name must be one of {', '.join(_SEARCHES)}, got {name!r}")
    if name in ("random", "grid") and not raw.get("metric"):
        problems.append(f"searcher.metric is needed to tell the best trial of a {name} search")
    if name == "random" and not raw.get("max_trials"):
        problems.append("searcher.max_trials is needed for a random search")
    if not {"max_length", "max_steps"} & raw.keys():
        problems.append(
            "searcher.max_length is needed, such as {'batches': 1000}: how long a trial trains"
        )
    raise_problems(ConfigurationError, "searcher", problems)
    return Searcher(
        name=name,
        metric=raw.get("metric"),
        smaller_is_better=bool(raw.get("smaller_is_better", True)),
        max_length=_max_length(raw, unit),
        max_trials=int(raw.get("max_trials") or 1),
    )


def _max_length(raw: Mapping[str, Any], unit: int) -> Length:
    if "max_length" in raw:
        return Length.parse("searcher.max_length", raw["max_length"])
    return Length.parse("searcher.max_steps", raw["max_steps"], batches_per_unit=unit)


def _first(raw: Mapping[str, Any], *fields: str, default: Any) -> Any:
    return next((raw[field] for field in fields if field in raw), default)


def read_yaml(text: str) -> dict[str, Any]:
    """Reads an experiment configuration, numbers as YAML 1.2 has them: 1e-4 is a float.

    Raises:
        ConfigurationError: it is not YAML, or not a mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML with the floats of YAML 1.2."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+0123456789."))
    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"The experiment configuration is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"The experiment configuration must be a mapping, but got {type(found).__name__}"
        )
    return found
