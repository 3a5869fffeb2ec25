"""The configuration of an experiment, as Determined and PEDL had it in YAML.

Source: the experiment configuration of Determined 0.12 and 0.13.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from generic_trainer._core.options import STRICT, Expected, reported
from generic_trainer._core.texts import describe, is_number
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.trials._algorithms import ALGORITHMS, Length
from generic_trainer.trials._gone import NamesSuccessors
from generic_trainer.trials._hyperparameters import Hyperparameter, parse_hyperparameters
from generic_trainer.trials.errors import InvalidExperimentException

DEFAULT_SCHEDULING_UNIT = 100  # batches
_SUBJECT = "The experiment configuration"
_BUCKETS = {"s3": "s3", "gcs": "gs"}  # type of a storage → scheme of its URLs

# Section → its fields for a local path and for a folder of a bucket, and Determined's default path.
_PLACES = {
    "checkpoint_storage": ("host_path", "prefix", "/tmp/determined-cp"),
    "data_layer": ("host_storage_path", "bucket_directory_path", "~/data/determined"),
}

# Fields of `searcher` without a default → what they are. The others have one.
_NEEDED = {
    "max_length": "such as {'batches': 1000}, how long a trial trains",
    "metric": "the validation metric by which trials are compared",
    "max_trials": "the number of trials",
    "num_rungs": "the number of rungs",
    "budget": "such as {'batches': 100000}, how long all trials train together",
}
# Names of 0.12 → of 0.13. They count steps, of `batches_per_step` batches each.
_STEPS = {"max_steps": "max_length", "target_trial_steps": "max_length", "step_budget": "budget"}
_PERIODS = ("min_validation_period", "min_checkpoint_period")  # a bare number counts steps, too
_WITHOUT_MEANING = (
    *("bind_mounts", "debug", "internal", "labels", "security", "tensorboard_storage"),
    # of later releases of Determined
    *("integrations", "log_policies", "pbs", "preemption_timeout", "profiling", "project"),
    *("retention_policy", "slurm", "workspace"),
)
_NOT_CHECKED = ("description", "experiment_config", "name", *_WITHOUT_MEANING)
_OF_A_JOB = ("checkpoint_storage", "environment")  # mean something only in the job of a script
# Of TFX's own `custom_config`, which may be the experiment configuration too.
_TFX_PREFIX = "ai_platform_"

_DEFAULTS: Mapping[str, Any] = {
    "data": {},
    "hyperparameters": {},
    "optimizations": {
        "aggregation_frequency": 1,
        "average_aggregated_gradients": True,
        "average_training_metrics": False,
        "gradient_compression": False,
        "mixed_precision": "O0",
    },
    "resources": {"slots_per_trial": 1, "native_parallel": False},
    "searcher": {"name": "single", "max_length": {"batches": 100}},
}

_logger = logging.getLogger(__name__)


class ExperimentConfig(NamesSuccessors, dict[str, Any]):
    """The mapping that the user wrote, with methods for the most used fields.

    | field | meaning |
    |---|---|
    | `hyperparameters` | name → a value, or a range to draw it from, such as `global_batch_size` |
    | `searcher.name` | `single` (default), `random`, `grid`, `adaptive_asha`, ... |
    | `searcher.metric` | the validation metric that ranks trials and checkpoints |
    | `searcher.smaller_is_better` | True by default |
    | `searcher.max_length` | how long a trial trains; `max_steps` in 0.12 |
    | `searcher.max_trials` | number of trials |
    | `searcher.max_concurrent_trials` | trials at the same time, if there are enough workers |
    | `records_per_epoch` | training records in an epoch, for lengths in epochs |
    | `scheduling_unit` | batches of a workload, 100 by default; `batches_per_step` in 0.12 |
    | `min_validation_period` | longest period without a validation; by default one at the end |
    | `min_checkpoint_period` | longest period without a checkpoint; by default one at the end |
    | `checkpoint_policy` | after which validations to save: `best` (default), `all`, `none` |
    | `perform_initial_validation` | also validates before the first batch |
    | `reproducibility.experiment_seed` | the seed, 0 by default |
    | `resources.slots_per_trial` | workers that share a batch |
    | `resources.native_parallel` | the user's code makes global batches, which are then divided |
    | `data`, `data_layer` | your own values; the directory of cached datasets |

    A length or a period is `{"batches": n}`, `{"records": n}` or `{"epochs": n}`. A bare number
    counts workloads in periods and in the fields of 0.12, and batches in `max_length` and `budget`.
    A period of 0 is none. What is less than a batch is one batch.
    Only scripts use `checkpoint_storage`; a pipeline has its checkpoints below the root.
    `optimizations` have no effect; those that would change a step are errors.

    Source: `determined.ExperimentConfig` of Determined 0.12 and 0.13.
    """

    @classmethod
    def with_defaults(cls, written: Mapping[str, Any]) -> ExperimentConfig:
        """Returns a copy of the user's configuration, with defaults for missing fields."""
        unit = {"scheduling_unit": written.get("batches_per_step", DEFAULT_SCHEDULING_UNIT)}
        parts = {
            name: {**_DEFAULTS[name], **(written[name] or {})}
            for name in ("optimizations", "resources")
            if name in written
        }
        if "searcher" in written:  # which may have no length
            parts["searcher"] = {"name": "single", **(written["searcher"] or {})}
        return cls(copy.deepcopy({**_DEFAULTS, **unit, **written, **parts}))

    def scheduling_unit(self) -> int:
        """Returns the batches in a training workload."""
        return int(self.get("scheduling_unit") or DEFAULT_SCHEDULING_UNIT)

    batches_per_step = scheduling_unit  # its name in 0.12

    def slots_per_trial(self) -> int:
        """Returns the devices of a trial."""
        return int((self.get("resources") or {}).get("slots_per_trial") or 1)

    def native_parallel_enabled(self) -> bool:
        """Returns whether user code batches by the global batch size."""
        return bool((self.get("resources") or {}).get("native_parallel"))

    def experiment_seed(self) -> int:
        """Returns the seed of the experiment; 0 if there is none."""
        return int((self.get("reproducibility") or {}).get("experiment_seed") or 0)

    def get_records_per_epoch(self) -> int | None:
        """Returns the records in an epoch; None if the configuration does not have it."""
        records = self.get("records_per_epoch")
        return None if records is None else int(records)


def _whole(value: Any) -> Any:
    """Returns a whole number that is written as 1e3 or "12"; any other value as it is."""
    is_text = isinstance(value, str) and value.isdecimal()
    return int(value) if is_text or (is_number(value) and value == int(value)) else value


def _length(value: Any) -> Length:
    units = ("batches", "records", "epochs")
    is_one = isinstance(value, Mapping) and len(value) == 1
    [(unit, count)] = value.items() if is_one else [("batches", value)]
    count = _whole(count)
    if unit not in units or not is_number(count) or count < 0 or count != int(count):
        expected = ", ".join(f"{{{unit!r}: number}}" for unit in units)
        raise ValueError(f"must be a whole number or one of {expected}, got {describe(value)}")
    return Length(int(count), unit)


_Source = Annotated[
    None,
    Expected(
        "left out (the model of another experiment is the component's base model here: load its "
        "weights in the trial, from context.pipeline.base_model)"
    ),
]
_Time = Annotated[None, Expected("left out (max_length, such as {'batches': 1000}, says so here)")]
_Count = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
_AboveZero = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
# More trials or rungs are a typing error, and would fill the memory.
_Trials = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1_000_000)]
_Rungs = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=100)]
_Variables = Sequence[Annotated[str, Field(pattern="=")]]
_Length = Annotated[Length, BeforeValidator(_length)]


class Section(pydantic.BaseModel):
    """A section of the configuration; a field that is None counts as left out.

    It may have fields that mean nothing here, of which Determined had many: `log_unused` names
    them.
    """

    model_config = {**STRICT, "frozen": True, "extra": "allow"}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _given(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            raise ValueError(f"must be a mapping, got {describe(raw)}")
        return {name: value for name, value in raw.items() if value is not None}


class Searcher(Section, extra="forbid"):
    """How the hyperparameters of the trials are chosen, and the trials compared.

    Attributes:
        max_length: of a trial.
    """

    name: Literal[tuple(ALGORITHMS)] = "single"  # type: ignore[valid-type]
    metric: str | None = None
    smaller_is_better: bool = True
    max_length: _Length = Length(0)
    budget: _Length | None = None
    max_trials: _Trials = 1
    max_concurrent_trials: _Count | None = None
    num_rungs: _Rungs = 1
    max_rungs: _Rungs = 5
    bracket_rungs: Sequence[_Rungs] = ()
    divisor: Annotated[float, Field(gt=1, le=1000)] = 4.0
    mode: Literal["conservative", "standard", "aggressive"] = "standard"
    source_trial_id: _Source = None
    source_checkpoint_uuid: _Source = None
    time_metric: _Time = None
    max_time: _Time = None
    train_stragglers: Any = None
    stop_once: Any = None

    def fields(self) -> list[str]:
        """Returns the fields that have a meaning with this name; see `_algorithms`."""
        own = [*inspect.signature(ALGORITHMS[self.name]).parameters]
        compares = [] if self.name == "single" else ["metric", "max_concurrent_trials"]
        return compares + own

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a metric is finite, and the first or strictly better than the best so far."""
        if best is None or not math.isfinite(value):
            return math.isfinite(value)
        return value < best if self.smaller_is_better else value > best


class Resources(Section):
    slots_per_trial: _Count = 1
    native_parallel: bool = False
    ray: Mapping[str, Any] = {}


class Optimizations(Section):
    aggregation_frequency: Annotated[
        _AboveZero,
        Field(le=1),
        Expected(
            "1, because a step of the optimizer is that of one batch here (multiply "
            "global_batch_size by it instead, which makes the same steps, or with Keras 3 pass "
            "gradient_accumulation_steps to the optimizer)"
        ),
    ] = 1
    mixed_precision: str = "O0"


class Reproducibility(Section):
    experiment_seed: Annotated[int, BeforeValidator(_whole)] = 0


class Environment(Section):
    environment_variables: Annotated[
        _Variables | Mapping[Literal["cpu", "cuda", "gpu", "rocm"], _Variables | None],
        Expected("a list of 'NAME=value', or one each of cpu and gpu, cuda or rocm"),
    ] = ()


class Place(Section):
    """Where checkpoints, or cached datasets, go."""

    type: str = "shared_fs"
    bucket: str | None = None
    # Of checkpoints.
    host_path: str | None = None
    storage_path: str | None = None
    prefix: str | None = None
    # Of datasets.
    host_storage_path: str | None = None
    bucket_directory_path: str | None = None


class ExperimentSettings(Section, extra="forbid"):
    """An experiment configuration, checked.

    Attributes:
        scheduling_unit: batches in a training workload.
        min_validation_period: validate at least this often; None leaves it to the end.
        checkpoint_policy: which validations are followed by a checkpoint.
        records_per_epoch: what turns epochs into batches; 0 if unknown.
        raw: the configuration as the user wrote it.
    """

    checkpoint_policy: Literal["best", "all", "none"] = "best"
    checkpoint_storage: Place = Place()
    data: Mapping[Any, Any] = {}
    data_layer: Place = Place()
    entrypoint: str | Sequence[str] | None = None
    environment: Environment = Environment()
    hyperparameters: Annotated[
        dict[str, Hyperparameter], BeforeValidator(parse_hyperparameters)
    ] = {}
    max_restarts: _Count = 0
    min_checkpoint_period: _Length | None = None
    min_validation_period: _Length | None = None
    optimizations: Optimizations = Optimizations()
    perform_initial_validation: bool = False
    records_per_epoch: _Count = 0
    reproducibility: Reproducibility = Reproducibility()
    resources: Resources = Resources()
    scheduling_unit: _AboveZero = DEFAULT_SCHEDULING_UNIT
    searcher: Searcher = Searcher()
    raw: Mapping[Any, Any] = {}

    @property
    def counts_epochs(self) -> bool:
        """Whether a length is in epochs."""
        periods = (self.searcher.max_length, self.min_validation_period, self.min_checkpoint_period)
        return any(length is not None and length.unit == "epochs" for length in periods)


def check_fields(raw: Mapping[str, Any], default_batches: int | None = None) -> ExperimentSettings:
    """Returns a configuration, which need not name its length or metric.

    Raises:
        ConfigurationError: with all fields that are wrong or unknown.
    """
    with reported(ExperimentSettings, _SUBJECT):
        return ExperimentSettings.model_validate(_of_today(raw, default_batches))


def parse_experiment(
    raw: Mapping[str, Any], default_batches: int | None = None
) -> ExperimentSettings:
    """Checks an experiment configuration; `default_batches` are the length if it has none.

    Raises:
        ConfigurationError: with all fields that are wrong, unknown or missing.
    """
    experiment = check_fields(raw, default_batches)
    searcher = experiment.searcher
    problems = [
        f"searcher.{field} is needed: {_NEEDED[field]}"
        for field in searcher.fields()
        if field in _NEEDED and field not in searcher.model_fields_set
    ]
    if searcher.budget is not None and searcher.budget.unit != searcher.max_length.unit:
        problems.append(
            "searcher.budget must have the unit of the length of a trial, "
            f"{searcher.max_length.unit}, got {searcher.budget.unit}"
        )
    raise_problems(ConfigurationError, _SUBJECT, problems)
    return experiment


def _of_today(written: Any, default_batches: int | None) -> Any:
    """Returns a configuration with the names of 0.13, and batches where 0.12 had steps."""
    if not isinstance(written, Mapping):
        return written
    raw = {
        name: value
        for name, value in written.items()
        if name not in _NOT_CHECKED and not str(name).startswith(_TFX_PREFIX)
    }
    unit = raw.get("scheduling_unit") or raw.get("batches_per_step") or DEFAULT_SCHEDULING_UNIT

    def batches(steps: Any) -> Any:
        steps = _whole(steps)
        size = _whole(unit)
        is_length = isinstance(steps, Mapping) or not is_number(steps) or not is_number(size)
        return steps if is_length else {"batches": steps * size}

    for name in _PERIODS:
        raw[name] = batches(raw[name]) if raw.get(name) else None
    searcher = raw.get("searcher") or {}
    if isinstance(searcher, Mapping):
        default = {"max_length": {"batches": default_batches}} if default_batches else {}
        given = {name: value for name, value in searcher.items() if value is not None}
        renamed = {_STEPS[name]: batches(given.pop(name)) for name in _STEPS if name in given}
        raw["searcher"] = {**default, **renamed, **given}
    raw.pop("batches_per_step", None)
    return {**raw, "scheduling_unit": unit, "raw": written}


def log_unused(experiment: ExperimentSettings, *, is_job: bool) -> None:
    """Names in the log the fields that have no meaning here, where they are given."""
    searcher = experiment.searcher
    used = {"name", "metric", "smaller_is_better", *searcher.fields()}
    unused = {f"searcher.{name}" for name in searcher.model_fields_set - used}
    unused |= {name for name in _WITHOUT_MEANING if experiment.raw.get(name)}
    unused |= {*(() if is_job else _OF_A_JOB)} & experiment.model_fields_set
    if not is_job and experiment.resources.ray:
        unused.add("resources.ray")
    for name, section in experiment:
        if isinstance(section, Section):
            unused |= {
                f"{name}.{field}" for field, value in (section.model_extra or {}).items() if value
            }
    if unused:
        _logger.warning(
            "The experiment configuration has fields without a meaning here: %s",
            ", ".join(sorted(unused)),
        )


def directory_of(config: Mapping[str, Any], name: str) -> str:
    """Returns the directory, local or remote, of a `checkpoint_storage` or a `data_layer`."""
    section: Mapping[str, Any] = config.get(name) or {}
    path_field, folder_field, path = _PLACES[name]
    kind = section.get("type", "shared_fs")
    if kind == "shared_fs":
        path = os.path.abspath(os.path.expanduser(section.get(path_field) or path))
        return os.path.join(path, section.get("storage_path") or "")
    if kind not in _BUCKETS or not section.get("bucket"):
        raise InvalidExperimentException(
            f"{name} must be {{'type': 'shared_fs', {path_field!r}: path}}, or 's3' or 'gcs' with "
            f"'bucket' and {folder_field!r}, but got {dict(section)!r}"
        )
    folder = str(section.get(folder_field) or "").strip("/")
    return f"{_BUCKETS[kind]}://{section['bucket']}/{folder}".rstrip("/")
