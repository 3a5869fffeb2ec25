"""Trials: samples of the hyperparameters, and the functions by which user code reads its own.

An experiment has one or several (`_search`); a script or a notebook has one (`sole_trial`).
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.trials._config import ExperimentConfig, check_fields
from generic_trainer.trials._gone import NamesSuccessors
from generic_trainer.trials._hyperparameters import sample
from generic_trainer.trials._loop import Controller
from generic_trainer.trials._pipeline import Current
from generic_trainer.trials.errors import CheckFailedError, InvalidArgumentsError
from generic_trainer.user_code import loaded_modules

_logger = logging.getLogger(__name__)

T = TypeVar("T")

# Sections about what only a cluster can do.
_CLUSTER_ONLY = ("bind_mounts", "checkpoint_storage", "environment", "optimizations", "resources")


def _refuse_changes(run_class: type[T]) -> type[T]:
    def refuse(self: T, name: str, value: Any) -> None:
        raise ConfigurationError(
            f"EnvContext.{name} cannot be changed, because restarts build the trial from its "
            "configuration: set the value there, or keep it in an attribute of your trial."
        )

    type.__setattr__(run_class, "__setattr__", refuse)
    return run_class


@_refuse_changes
@dataclasses.dataclass(frozen=True)
class TrialRun(NamesSuccessors):
    """What a trial is built from.

    Attributes:
        trial_id: 1, 2, ... within the experiment.
        config: the experiment configuration, as the user wrote it.
        slots: devices to train on, in all processes together.
        workers: processes that train together, each with as many of the slots.
        batches_trained: where to go on; 0 at the start.
        checkpoint_dir: the checkpoint to go on from; None at the start.
        log_dir: where event files of this trial go; None outside of an experiment.
        download_dir: the result of the module's `download_data`.
        has_global_batches: whether the user's code makes batches for all slots together, as PEDL's
            trials do, and others with `resources.native_parallel`.
        managed_training: whether the harness trains. Without it, what `wrap_model` and the like
            are given comes back unchanged, to be used in a script or a notebook.
    """

    trial_id: int
    config: Mapping[str, Any]
    hparams: Mapping[str, Any]
    seed: int
    slots: int = 1
    workers: int = 1
    batches_trained: int = 0
    checkpoint_dir: str | None = None
    log_dir: str | None = None
    download_dir: str | None = None
    managed_training: bool = True
    has_global_batches: bool = False

    def __post_init__(self) -> None:
        # Code of a trial may change lists in it, which other trials must not see.
        object.__setattr__(self, "hparams", copy.deepcopy(self.hparams))

    @functools.cached_property
    def experiment_config(self) -> ExperimentConfig:
        """The experiment configuration, with defaults for fields that it leaves out."""
        return ExperimentConfig.with_defaults(self.config)

    @property
    def trial_seed(self) -> int:
        """The seed, by its name in Determined."""
        return self.seed

    @property
    def det_trial_id(self) -> str:
        """The number as a string; empty outside of an experiment."""
        return str(self.trial_id) if self.managed_training else ""


# A trial and where it runs, by its name in Determined. A class of the user's that derives from a
# context is called with (env, hvd_config), and hands both on.
EnvContext = TrialRun


class _Core:
    """`det.core` of Determined 0.17 and later: its `Context`, for annotations; using it fails."""

    Context = Any

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"det.core.{name}: Determined's Core API is not covered, but trial classes of 0.12 and "
            "0.13 are, and later ones as far as they are alike. A loop of your own is a run_fn: "
            "training.CheckpointManager of generic_trainer saves and restores it, "
            "training.distributed connects its workers, and event files in fn_args.model_run_dir "
            "hold its metrics."
        )


core = _Core()


class HorovodContext(NamedTuple):
    """How the slots of a trial add up gradients; a step is always that of one batch.

    Attributes:
        use: whether there are several processes.

    Source: `determined.horovod.HorovodContext` of Determined 0.12 and 0.13.
    """

    use: bool = False
    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True


class Trial:
    """What the base classes of the trial APIs have in common.

    Attributes:
        is_script: whether a script builds the trial, as a job on a cluster.
    """

    is_script = False

    @classmethod
    def open_controller(cls, run: TrialRun) -> Controller:
        """Builds the trial, restored from `run.checkpoint_dir` where there is one."""
        raise NotImplementedError(f"{cls.__name__} belongs to no trial API")

    @classmethod
    def global_batch_size(cls, run: TrialRun) -> int:
        """Returns what turns records into batches; see the function of this name."""
        size = run.hparams.get("batch_size")  # of PEDL
        return global_batch_size(run.hparams.get("global_batch_size", size))


def global_batch_size(size: Any, slots: int = 1) -> int:
    """Returns the records in a training step: the hyperparameter, as far as slots can share it."""
    if size is None:
        raise InvalidArgumentsError(
            "Please specify `global_batch_size` under `hyperparameters` in experiment config. "
            "Lengths in records or epochs need it, too."
        )
    if not isinstance(size, int) or isinstance(size, bool):
        raise CheckFailedError(f"`global_batch_size` hparam must be an int, but got {size!r}.")
    if size < slots or size < 1:
        raise InvalidArgumentsError(
            "Please set the `global_batch_size` hyperparameter to be greater or equal to the "
            f"number of slots. Current batch_size: {size}, slots_per_trial: {slots}."
        )
    effective = size // slots * slots
    if effective != size:
        _logger.warning(
            "`global_batch_size` changed from %d to %d to divide equally across %d slots.",
            size,
            effective,
            slots,
        )
    return effective


# The function of a module of PEDL that returns the data.
LOADERS = "make_data_loaders"


class HparamsTrial(Trial):
    """What trials of PEDL have in common: they are made of hyperparameters, and have no context."""

    def __init__(self, hparams: dict[str, Any]) -> None:
        """Takes the trial's sample of the hyperparameters; a subclass need not call this."""
        self.hparams = hparams

    @classmethod
    def open_controller(cls, run: TrialRun) -> Any:
        """Builds the trial, with the `global_batch_size` that contexts need: its `batch_size`."""
        size = run.hparams.get("batch_size", 1)
        hparams = {"global_batch_size": size, **run.hparams}
        run = dataclasses.replace(run, hparams=hparams, has_global_batches=True)
        return super().open_controller(run)

    @classmethod
    def load_data(cls, run: TrialRun) -> Any:
        """Returns what `make_data_loaders` of the class's module returns.

        Raises:
            ModuleFileError: there is none.
        """
        make = module_function(cls, LOADERS)
        if make is None:
            name = cls.__module__
            raise ModuleFileError(
                f"Module {name!r}, which has the trial {cls.__name__}, must also define "
                f"{LOADERS}(experiment_config, hparams)",
                path=code_file(name),
            )
        return make(run.experiment_config, dict(run.hparams))


def trial_classes(module: ModuleType) -> list[type[Any]]:
    """Returns the trial classes that an imported module defines, and can be built."""
    return [value for value in _defined_trials(module) if _is_trial(value)]


def imported_trials(module: ModuleType) -> list[type[Any]]:
    """Returns the user's trial classes that a module imports from others of the user's."""
    found = [
        value
        for value in vars(module).values()
        if _is_trial(value) and value.__module__.partition(".")[0] != __name__.partition(".")[0]
    ]
    return [*dict.fromkeys(found)]  # one may have a second name


def _is_trial(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Trial) and not inspect.isabstract(value)


def refuse_incomplete(module: ModuleType) -> None:
    """Refuses a module whose only trial classes lack methods.

    Raises:
        ModuleFileError: the module has such a class.
    """
    for trial in _defined_trials(module):
        lacks = sorted(trial.__abstractmethods__)
        remedy = "Define them in the class."
        build_model = getattr(trial, "build_model", None)
        takes_hparams = build_model and "hparams" in inspect.signature(build_model).parameters
        if takes_hparams and not issubclass(trial, HparamsTrial):
            remedy = (
                'Its methods take hparams, as those of PEDL did: write "from '
                'generic_trainer.trials.keras import KerasTrial as TFKerasTrial".'
            )
        raise ModuleFileError(
            f"The trial {trial.__name__} has no {' and no '.join(lacks)}. {remedy}",
            path=code_file(module.__name__),
        )


def _defined_trials(module: ModuleType) -> list[type[Any]]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Trial)
        and value.__module__ == module.__name__
    ]


def chosen_class(module: ModuleType, entrypoint: str | Sequence[str] | None) -> type[Any]:
    """Returns the trial class that `entrypoint` names, such as "model_def:MyTrial".

    Without one, or where it is a command, as in later releases, it is the only one that the module
    defines, or else imports.

    Raises:
        ModuleFileError: the module has no class of that name, or several and none is named.
    """
    classes = trial_classes(module) or imported_trials(module)
    entrypoint = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    path = entrypoint.rpartition(":")[2]
    name = path.rpartition(".")[2]
    nested: Any = module
    for part in path.split("."):
        nested = getattr(nested, part, None)
    named: Any
    for named in (nested, vars(module).get(name)):
        if _is_trial(named):
            return named  # type: ignore[no-any-return]
    if entrypoint and re.fullmatch(r"[\w.]+:[\w.]+", entrypoint):
        known = [other for other, value in vars(module).items() if _is_trial(value)]
        raise ModuleFileError(
            f"entrypoint {entrypoint!r} of the experiment configuration names no trial class of "
            f"module {module.__name__!r}{did_you_mean(name, known)}, which has "
            f"{', '.join(sorted(known))}: name one of these, or leave entrypoint out.",
            path=code_file(module.__name__),
        )
    if len(classes) > 1:
        names = ", ".join(sorted(trial.__name__ for trial in classes))
        raise ModuleFileError(
            f"Module {module.__name__!r} defines several trials ({names}) and no run_fn "
            f"that chooses one: add `run_fn = run_fn_from_trial({classes[-1].__name__})`, from "
            "generic_trainer.trials, or name one as `entrypoint` of the experiment configuration: "
            f'"{module.__name__}:{classes[-1].__name__}"'
        )
    return classes[0]


def sole_trial(config: Mapping[str, Any]) -> TrialRun:
    """Returns trial 1 on one slot; hyperparameters are drawn with the seed of the experiment.

    Raises:
        ConfigurationError: a hyperparameter is none.
    """
    checked = check_fields(config)
    kept = {name: part for name, part in config.items() if name not in _CLUSTER_ONLY}
    seed = checked.reproducibility.experiment_seed
    return TrialRun(1, config=kept, hparams=sample(checked.hyperparameters, seed), seed=seed)


_current: Current[TrialRun] = Current("current_trial")


def current(run: TrialRun) -> contextlib.AbstractContextManager[None]:
    """Makes a trial the one that the functions below return values of."""
    return _current.set(run)


def get_experiment_config() -> ExperimentConfig:
    """Returns the experiment configuration of the running trial.

    Raises:
        ConfigurationError: no trial is running.
    """
    return _running().experiment_config


def get_data_config() -> dict[str, Any]:
    """Returns the section `data` of the running trial's experiment configuration.

    Raises:
        ConfigurationError: no trial is running.
    """
    return get_experiment_config().get("data") or {}


def get_hyperparameters() -> dict[str, Any]:
    """Returns the running trial's sample of the hyperparameters.

    Raises:
        ConfigurationError: no trial is running.
    """
    return dict(_running().hparams)


def get_hyperparameter(name: str) -> Any:
    """Returns the running trial's value of a hyperparameter.

    Raises:
        ConfigurationError: no trial is running, or it has no such hyperparameter.
    """
    values = get_hyperparameters()
    if name not in values:
        raise ConfigurationError(f"Unknown hyperparameter {name!r}; known are {sorted(values)}")
    return values[name]


def get_trial_seed() -> int:
    """Returns the running trial's seed.

    Raises:
        ConfigurationError: no trial is running.
    """
    return _running().seed


def get_download_data_dir() -> str:
    """Returns the directory that the module's `download_data(experiment_config, hparams)` returned.

    Raises:
        ConfigurationError: no trial is running, or its module has no such function.
    """
    directory = _running().download_dir
    if directory is None:
        raise ConfigurationError(
            "The module of the trial class defines no download_data(experiment_config, hparams)"
        )
    return directory


def downloaded(trial_class: type[Trial], run: TrialRun) -> TrialRun:
    """Returns a trial of PEDL with the directory that its module's `download_data` returns.

    A function of that name that does not take (experiment_config, hparams) is the user's own.
    """
    is_asked = issubclass(trial_class, HparamsTrial) and run.download_dir is None
    download = module_function(trial_class, "download_data") if is_asked else None
    arguments = run.experiment_config, dict(run.hparams)
    if download is None or not takes(download, *arguments):
        return run
    return dataclasses.replace(run, download_dir=download(*arguments))


def takes(function: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError:
        return False
    return True


def code_file(module: str) -> str | None:
    """Returns the file of a module; None if it has none, as in a notebook."""
    return getattr(sys.modules.get(module), "__file__", None)


def module_function(trial_class: type[Any], name: str) -> Callable[..., Any] | None:
    """Returns a function of the class's module, its package, or where the user imports both."""
    own = trial_class.__module__
    places = [own, own.rpartition(".")[0]]
    modules = [sys.modules[place] for place in places if place in sys.modules]
    for module in (*loaded_modules(), sys.modules["__main__"]):
        if vars(module).get(trial_class.__name__) is trial_class:
            modules.append(module)
    functions = (getattr(module, name, None) for module in modules)
    return next(filter(callable, functions), None)


def current_run() -> TrialRun | None:
    """Returns the running trial; None if there is none."""
    return _current.get()


def _running() -> TrialRun:
    run = current_run()
    if run is None:
        raise ConfigurationError(
            "This can be asked only while a trial runs, in code that its methods call, and not "
            "when the module is imported."
        )
    return run
