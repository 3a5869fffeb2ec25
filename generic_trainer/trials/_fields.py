"""The fields that an experiment configuration may have, and what each must be.

Source: the experiment configuration of Determined 0.12 and 0.13.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer._core.texts import describe, did_you_mean, is_number
from generic_trainer.errors import ConfigurationError, raise_problems

UNITS = ("batches", "records", "epochs")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FieldKind:
    """What values a field takes, in words and as a test."""

    expected: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def whole(value: Any) -> int | None:
    """Returns a whole number from 0 on, also one that is written as 1e3 or "12"; else None."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    is_whole = is_number(value) and value >= 0 and value == math.floor(value)
    return int(value) if is_whole else None


def _is_length(value: Any) -> bool:
    if isinstance(value, Mapping) and len(value) == 1:
        [(unit, value)] = value.items()
        if unit not in UNITS:
            return False
    return not isinstance(value, str) and whole(value) is not None


def _are_variables(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.keys() <= {"cpu", "gpu"} and all(map(_are_variables, value.values()))
    return _LIST.fits(value) and all(isinstance(one, str) and "=" in one for one in value)


def _one_of(*choices: str) -> FieldKind:
    return FieldKind(f"one of {', '.join(choices)}", lambda value: value in choices, choices)


def _number(range_: str, fits: Callable[[Any], bool]) -> FieldKind:
    return FieldKind(f"a number {range_}", lambda value: is_number(value) and fits(value))


_ANY = FieldKind("", lambda value: True)
_TEXT = FieldKind("a text", lambda value: isinstance(value, str))
_FLAG = FieldKind("true or false", lambda value: isinstance(value, bool))
_COUNT = FieldKind("a whole number, 0 or above", lambda value: whole(value) is not None)
_ABOVE_0 = FieldKind("a whole number above 0", lambda value: bool(whole(value)))


def _up_to(most: int) -> FieldKind:  # more is a typing error, which would fill the memory
    expected = f"a whole number from 1 to {most:,}"
    return FieldKind(expected, lambda value: 1 <= (whole(value) or 0) <= most)


_TRIALS, _RUNGS = _up_to(1_000_000), _up_to(100)
_MAPPING = FieldKind("a mapping", lambda value: isinstance(value, Mapping))
_LIST = FieldKind("a list", lambda value: isinstance(value, (list, tuple)))
_LIST_OF_RUNGS = FieldKind(
    f"a list with {_RUNGS.expected} each",
    lambda value: _LIST.fits(value) and all(map(_RUNGS.fits, value)),
)
_LENGTH = FieldKind(
    f"a whole number or one of {', '.join(f'{{{unit!r}: number}}' for unit in UNITS)}", _is_length
)
_VARIABLES = FieldKind("a list of 'NAME=value', or one each of cpu and gpu", _are_variables)
_SHARE = _number("from 0 to 1", lambda value: 0 <= value <= 1)

# Where checkpoints, and cached datasets, go.
_PLACES = {
    "checkpoint_storage": "type host_path storage_path container_path checkpoint_path prefix user "
    "tensorboard_path propagation bucket access_key secret_key endpoint_url hdfs_url hdfs_path",
    "data_layer": "type host_storage_path container_storage_path bucket bucket_directory_path "
    "access_key secret_key endpoint_url local_cache_host_path local_cache_container_path",
}
# Searcher → the fields that it needs, and those that it may have beside them.
_COMMON = "name metric smaller_is_better source_trial_id source_checkpoint_uuid"
_HALVING = "divisor max_concurrent_trials"
_ADAPTIVE = f"mode max_rungs bracket_rungs {_HALVING}"
SEARCHERS: Mapping[str, tuple[str, str]] = {
    "single": ("max_length", ""),
    "random": ("metric max_length max_trials", "max_concurrent_trials"),
    "grid": ("metric max_length", "max_concurrent_trials"),
    "adaptive": ("metric max_length budget", _ADAPTIVE),
    "adaptive_simple": ("metric max_length max_trials", _ADAPTIVE),
    "adaptive_asha": ("metric max_length max_trials", _ADAPTIVE),
    "sync_halving": ("metric max_length num_rungs budget", _HALVING),
    "async_halving": ("metric max_length num_rungs max_trials", _HALVING),
    "pbt": (
        "metric population_size num_rounds length_per_round",
        "replace_function explore_function max_concurrent_trials",
    ),
}
# Names of 0.12 → of 0.13. They count steps, of `batches_per_step` batches each.
STEPS: Mapping[str, str] = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "length_per_round",
}

FIELDS: Mapping[str, FieldKind] = {
    path: kind
    for kind, paths in {
        _ANY: """
            environment.add_capabilities environment.drop_capabilities
            environment.force_pull_image environment.image environment.pod_spec environment.ports
            environment.registry_auth experiment_config internal labels resources.shm_size
            security tensorboard_storage""",
        _TEXT: f"""
            description entrypoint name resources.agent_label resources.resource_pool
            optimizations.grad_updates_size_file optimizations.mixed_precision
            searcher.metric searcher.source_checkpoint_uuid
            {" ".join(f"{place}.{one}" for place, ones in _PLACES.items() for one in ones.split())}
            """,
        _FLAG: """
            debug perform_initial_validation resources.native_parallel
            optimizations.auto_tune_tensor_fusion optimizations.average_aggregated_gradients
            optimizations.average_training_metrics optimizations.gradient_compression
            searcher.smaller_is_better searcher.train_stragglers""",
        _COUNT: """
            max_restarts records_per_epoch checkpoint_storage.save_experiment_best
            checkpoint_storage.save_trial_best checkpoint_storage.save_trial_latest
            optimizations.tensor_fusion_cycle_time optimizations.tensor_fusion_threshold
            resources.max_slots resources.priority resources.slots_per_trial
            searcher.max_concurrent_trials searcher.max_steps searcher.source_trial_id
            searcher.step_budget searcher.steps_per_round searcher.target_trial_steps""",
        _ABOVE_0: """
            batches_per_step scheduling_unit optimizations.aggregation_frequency
            searcher.num_rounds""",
        _MAPPING: """
            checkpoint_storage data data_layer environment hyperparameters optimizations
            reproducibility resources resources.ray searcher searcher.explore_function
            searcher.replace_function""",
        _LIST: "bind_mounts resources.devices",
        _TRIALS: "searcher.max_trials searcher.population_size",
        _RUNGS: "searcher.max_rungs searcher.num_rungs",
        _LIST_OF_RUNGS: "searcher.bracket_rungs",
        _VARIABLES: "environment.environment_variables",
        _LENGTH: """
            min_checkpoint_period min_validation_period
            searcher.budget searcher.length_per_round searcher.max_length""",
        _SHARE: """
            searcher.explore_function.perturb_factor
            searcher.explore_function.resample_probability""",
        _one_of("best", "all", "none"): "checkpoint_policy",
        _one_of("conservative", "standard", "aggressive"): "searcher.mode",
        _one_of(*SEARCHERS): "searcher.name",
        FieldKind("a number", is_number): "resources.weight",
        _number("above 1, to 1,000", lambda value: 1 < value <= 1000): "searcher.divisor",
        _number("from 0 to 0.5", lambda value: 0 <= value <= 0.5): (
            "searcher.replace_function.truncate_fraction"
        ),
        FieldKind(
            "a whole number",
            lambda value: whole(abs(value) if is_number(value) else value) is not None,
        ): "reproducibility.experiment_seed",
    }.items()
    for path in paths.split()
}

# What only a cluster can do; the first are known to a job that a script has started.
_OF_A_JOB = ("checkpoint_storage", "environment", "resources.ray")
_UNUSED = """
    bind_mounts internal labels security tensorboard_storage
    optimizations.auto_tune_tensor_fusion optimizations.gradient_compression
    optimizations.grad_updates_size_file optimizations.tensor_fusion_cycle_time
    optimizations.tensor_fusion_threshold optimizations.average_training_metrics
    resources.agent_label resources.devices resources.max_slots resources.priority
    resources.resource_pool resources.shm_size resources.weight
"""
# Of TFX's own `custom_config`, which may be the experiment configuration too.
_TFX_PREFIX = "ai_platform_"


def check_fields(raw: Mapping[str, Any]) -> list[str]:
    """Returns all that is wrong with the fields of a configuration, but for `hyperparameters`."""
    if not isinstance(raw, Mapping):
        return [f"it must be a mapping, got {describe(raw)}"]
    return [*_problems(raw, "")]


def checked(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a configuration as it is, or raises `ConfigurationError` with all that is wrong."""
    raise_problems(ConfigurationError, "The experiment configuration", check_fields(raw))
    return raw


def log_unused(raw: Mapping[str, Any], *, is_job: bool) -> None:
    """Names in the log the fields that have no meaning here, where they are given."""
    searcher = raw.get("searcher") or {}
    name = searcher.get("name") or "single"
    used = f"{_COMMON} {' '.join(SEARCHERS[name])}".split()
    paths = sorted([*_UNUSED.split(), *(() if is_job else _OF_A_JOB)])
    unused = [
        *(path for path in paths if _given(raw, path)),
        *(f"searcher.{field}" for field in searcher if STEPS.get(field, field) not in used),
    ]
    if unused:
        _logger.warning(
            "The experiment configuration has fields without a meaning here: %s", ", ".join(unused)
        )


def _given(raw: Mapping[str, Any], path: str) -> bool:
    section, _, field = path.rpartition(".")
    value = ((raw.get(section) or {}) if section else raw).get(field)
    return value not in (None, False, {}, [], "")


def _problems(section: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    paths = [path for path in FIELDS if path.startswith(prefix)]
    known = [name for path in paths if "." not in (name := path.removeprefix(prefix))]
    for name, value in section.items():
        path = f"{prefix}{name}"
        if name not in known:
            if not path.startswith(_TFX_PREFIX):
                near = did_you_mean(name, known)
                yield f"{path} is no field of it{near}; what is your own belongs under data"
        elif value is None:  # as left out
            continue
        elif not (kind := FIELDS[path]).fits(value):
            near = did_you_mean(value, kind.choices)
            yield f"{path} must be {kind.expected}, got {describe(value)}{near}"
        elif isinstance(value, Mapping) and any(one.startswith(f"{path}.") for one in FIELDS):
            yield from _problems(value, f"{path}.")
