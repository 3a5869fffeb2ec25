"""The configuration of an experiment, as Determined and PEDL had it in YAML."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.texts import parse_yaml
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.trials._fields import SEARCHERS, STEPS, check_fields, whole
from generic_trainer.trials._hyperparameters import Hyperparameter, parse_hyperparameters
from generic_trainer.trials.errors import InvalidExperimentException

DEFAULT_SCHEDULING_UNIT = 100  # batches
DEFAULT_DATA_DIR = "~/data/determined"
_DEFAULT_CHECKPOINT_DIR = "/tmp/determined-cp"  # of Determined's own configuration
_NEEDED = {
    "max_length": "such as {'batches': 1000}, how long a trial trains",
    "metric": "the validation metric that tells the best trial",
}
_BUCKETS = {"s3": "s3", "gcs": "gs"}  # type of a storage → scheme of its URLs


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


class ExperimentConfig(dict[str, Any]):
    """The mapping that the user wrote, with methods for what is asked most.

    | field | what it is |
    |---|---|
    | `hyperparameters` | name → a value, or a range to draw it from; `global_batch_size` is one |
    | `searcher.name` | `single` (default), `random`, `grid`, `adaptive_asha`, `pbt`, ... |
    | `searcher.metric` | of the validation, by which trials and checkpoints are compared |
    | `searcher.smaller_is_better` | True by default |
    | `searcher.max_length` | how long a trial trains; `max_steps` in 0.12 |
    | `searcher.max_trials` | of a search |
    | `searcher.max_concurrent_trials` | that train at the same time, where there are workers |
    | `records_per_epoch` | training records in an epoch, for lengths in epochs |
    | `scheduling_unit` | batches of a workload, 100 by default; `batches_per_step` in 0.12 |
    | `min_validation_period` | validates at least as often; by default at the end |
    | `min_checkpoint_period` | writes a checkpoint at least as often; by default at the end |
    | `checkpoint_policy` | after which validations to save: `best` (default), `all`, `none` |
    | `perform_initial_validation` | validates before the first batch too |
    | `reproducibility.experiment_seed` | 0 by default |
    | `resources.slots_per_trial` | workers, or devices of the only process, that share a batch |
    | `resources.native_parallel` | user code batches by the global batch size |
    | `data`, `data_layer` | for the trial to read; where cached datasets lie |
    | `debug` | more is logged |

    A length or a period is `{"batches": n}`, `{"records": n}`, `{"epochs": n}`, or a number of
    workloads. `checkpoint_storage` is for scripts alone: here checkpoints lie below the pipeline
    root. Of `optimizations`, `aggregation_frequency` and `average_aggregated_gradients` count.

    Source: `determined.ExperimentConfig` of Determined 0.12 and 0.13.
    """

    @classmethod
    def with_defaults(cls, written: Mapping[str, Any]) -> ExperimentConfig:
        """Returns a copy of what the user wrote, with what it leaves out at its default."""
        unit = {"scheduling_unit": written.get("batches_per_step", DEFAULT_SCHEDULING_UNIT)}
        return cls(copy.deepcopy({**_DEFAULTS, **unit, **written}))

    def scheduling_unit(self) -> int:
        """Returns the batches in a training workload."""
        named = self.get("scheduling_unit") or self.get("batches_per_step")
        return int(named or DEFAULT_SCHEDULING_UNIT)

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
        """Returns the records in an epoch; None if the configuration does not say."""
        records = self.get("records_per_epoch")
        return None if records is None else int(records)

    def get_min_validation_period(self) -> dict[str, int]:
        """Returns how long training goes on without a validation; empty if that is not limited."""
        return self.get("min_validation_period") or {}

    def get_data_layer_type(self) -> str:
        """Returns where cached datasets lie, such as "shared_fs"."""
        return str(self["data_layer"]["type"])

    def debug_enabled(self) -> bool:
        """Returns whether the user wants more to be logged."""
        return bool(self.get("debug"))


@dataclasses.dataclass(frozen=True)
class Length:
    """A number of batches, records or epochs."""

    count: int
    unit: str = "batches"

    @classmethod
    def parse(cls, value: Any, batches_per_step: int = 1) -> Length:
        """Reads `{"epochs": 3}`, or a bare number of steps, as the first releases had it."""
        [(unit, count)] = value.items() if isinstance(value, Mapping) else [("batches", value)]
        steps = 1 if isinstance(value, Mapping) else batches_per_step
        return cls((whole(count) or 0) * steps, unit)

    def to_batches(self, global_batch_size: int, records_per_epoch: int) -> int:
        """Returns the number of whole batches."""
        if self.unit == "batches":
            return self.count
        if self.unit == "records":
            return self.count // global_batch_size
        if records_per_epoch <= 0:
            raise ConfigurationError(
                f"{{'epochs': {self.count}}} needs records_per_epoch, the number of training "
                "records, at the top level of the experiment configuration"
            )
        return self.count * records_per_epoch // global_batch_size


@dataclasses.dataclass(frozen=True)
class Searcher:
    """How the hyperparameters of the trials are chosen, and the trials compared.

    Attributes:
        max_length: of a trial; in a population all rounds together.
        options: the other fields, of those that `_fields.SEARCHERS` names.
    """

    max_length: Length
    name: str
    metric: str | None
    smaller_is_better: bool
    options: Mapping[str, Any]

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a metric is the first, or strictly better than the best so far."""
        if best is None:
            return True
        return value < best if self.smaller_is_better else value > best


@dataclasses.dataclass(frozen=True)
class ExperimentSettings:
    """An experiment configuration, checked.

    Attributes:
        raw: the configuration as the user wrote it.
        scheduling_unit: batches in a training workload.
        min_validation_period: validate at least this often; None leaves it to the end.
        checkpoint_policy: which validations are followed by a checkpoint: "best", "all", "none".
        records_per_epoch: what turns epochs into batches; 0 if unknown.
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

    @property
    def counts_epochs(self) -> bool:
        """Whether a length is in epochs."""
        periods = (self.searcher.max_length, self.min_validation_period, self.min_checkpoint_period)
        return any(length is not None and length.unit == "epochs" for length in periods)


def parse_experiment(
    raw: Mapping[str, Any], default_length: Length | None = None
) -> ExperimentSettings:
    """Checks an experiment configuration; `default_length` is for one that says no length."""
    problems = check_fields(raw)
    hyperparameters: dict[str, Hyperparameter] = {}
    try:
        hyperparameters = parse_hyperparameters(_section(raw, "hyperparameters"))
    except ConfigurationError as error:
        problems.append(str(error))
    searcher = _section(raw, "searcher")
    problems += _missing(searcher, default_length)
    raise_problems(ConfigurationError, "The experiment configuration", problems)
    unit = ExperimentConfig(raw).scheduling_unit()

    def period(field: str) -> Length | None:
        length = Length.parse(raw.get(field) or 0, unit)
        return length if length.count else None

    return ExperimentSettings(
        raw=raw,
        hyperparameters=hyperparameters,
        searcher=_parse_searcher(searcher, unit, default_length),
        scheduling_unit=unit,
        min_validation_period=period("min_validation_period"),
        min_checkpoint_period=period("min_checkpoint_period"),
        checkpoint_policy=raw.get("checkpoint_policy") or "best",
        perform_initial_validation=bool(raw.get("perform_initial_validation")),
        records_per_epoch=ExperimentConfig(raw).get_records_per_epoch() or 0,
        seed=ExperimentConfig(raw).experiment_seed(),
        slots=ExperimentConfig(raw).slots_per_trial(),
    )


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section; an empty one for what is none, as `check_fields` says."""
    section = raw.get(name)
    return section if isinstance(section, Mapping) else {}


def _missing(searcher: Mapping[str, Any], default_length: Length | None) -> list[str]:
    name = searcher.get("name") or "single"
    needed, _ = SEARCHERS.get(name, ("", "")) if isinstance(name, str) else ("", "")
    given = {STEPS.get(field, field) for field, value in searcher.items() if value is not None}
    given |= {"max_length"} if default_length else set()
    return [
        f"searcher.{field} is needed: {_NEEDED.get(field, f'the searcher is {name!r}')}"
        for field in needed.split()
        if field not in given
    ]


def _parse_searcher(raw: Mapping[str, Any], unit: int, default_length: Length | None) -> Searcher:
    # Steps of the first releases have names of their own.
    options: dict[str, Any] = {
        STEPS.get(field, field): {"batches": int(value) * unit} if field in STEPS else value
        for field, value in raw.items()
        if value is not None
    }
    if options.get("name") == "pbt":
        round_ = Length.parse(options["length_per_round"])
        length = dataclasses.replace(round_, count=round_.count * int(options["num_rounds"]))
    elif "max_length" in options:
        length = Length.parse(options["max_length"])
    else:
        length = default_length or Length(0)
    budget = Length.parse(options.get("budget", {length.unit: 0}))
    if budget.unit != length.unit:
        raise ConfigurationError(
            "The experiment configuration: searcher.budget must have the unit of the length of a "
            f"trial, {length.unit}, got {budget.unit}"
        )
    return Searcher(
        name=options.get("name", "single"),
        metric=options.get("metric"),
        smaller_is_better=options.get("smaller_is_better", True),
        max_length=length,
        options=options,
    )


def read_yaml(text: str, path: str | None = None) -> dict[str, Any]:
    """Reads an experiment configuration; see `parse_yaml`."""
    try:
        config = parse_yaml(text)
    except ValueError as error:
        raise ConfigurationError(
            f"The experiment configuration is not YAML: {error}", path=path
        ) from error
    if not isinstance(config, dict):
        raise ConfigurationError(
            f"The experiment configuration must be a mapping, but got {type(config).__name__}",
            path=path,
        )
    return config


def data_layer_dir(layer: Mapping[str, Any]) -> str:
    """Returns the directory, local or remote, that a section `data_layer` names."""
    if layer.get("type", "shared_fs") == "shared_fs":
        path = layer.get("host_storage_path") or layer.get("container_storage_path")
        return os.path.abspath(os.path.expanduser(path or DEFAULT_DATA_DIR))
    url = _bucket_url(layer, layer.get("bucket_directory_path"))
    if url is None:
        raise ConfigurationError(
            "data_layer must be {'type': 'shared_fs', 'host_storage_path': path}, or 's3' or 'gcs' "
            f"with 'bucket' and 'bucket_directory_path', but got {dict(layer)!r}"
        )
    return url


def checkpoint_storage_dir(config: Mapping[str, Any]) -> str:
    """Returns the directory, local or remote, that a section `checkpoint_storage` names."""
    storage = config.get("checkpoint_storage") or {}
    if storage.get("type", "shared_fs") == "shared_fs":
        path = storage.get("host_path") or _DEFAULT_CHECKPOINT_DIR
        return os.path.join(path, storage.get("storage_path") or "")
    url = _bucket_url(storage, storage.get("prefix"))
    if url is None:
        raise InvalidExperimentException(
            "checkpoint_storage must be {'type': 'shared_fs', 'host_path': path}, or 'gcs' or 's3' "
            f"with 'bucket', but got {storage!r}"
        )
    return url


def _bucket_url(section: Mapping[str, Any], folder: Any) -> str | None:
    scheme = _BUCKETS.get(section["type"])
    if scheme is None or not section.get("bucket"):
        return None
    return f"{scheme}://{section['bucket']}/{str(folder or '').strip('/')}".rstrip("/")
