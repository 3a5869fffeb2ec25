"""Trials: samples of the hyperparameters, and what the user's code may ask about its own.

An experiment has one or several (`_search`); a script or a notebook has one (`sole_trial`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.trials._config import ExperimentConfig
from generic_trainer.trials._fields import checked
from generic_trainer.trials._hyperparameters import parse_hyperparameters, sample
from generic_trainer.trials._loop import Controller
from generic_trainer.user_code import loaded_modules

# Sections about what only a cluster can do.
_CLUSTER_ONLY = ("bind_mounts", "checkpoint_storage", "environment", "optimizations", "resources")


@dataclasses.dataclass(frozen=True)
class TrialRun:
    """What a trial is built from.

    Attributes:
        trial_id: 1, 2, ... within the experiment.
        config: the experiment configuration, as the user wrote it.
        slots: devices to train on, in all processes together.
        workers: processes that train together, each with as many of the slots.
        batches_trained: where to go on; 0 at the start.
        checkpoint_dir: the checkpoint to go on from; None at the start.
        log_dir: where event files of this trial go; None outside of an experiment.
        parent: the trial of a population whose copy this is.
        base_model: the SavedModel whose weights it starts with; None is with those of its own.
        download_dir: what the module's `download_data` returned.
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
    parent: int | None = None
    base_model: str | None = None
    download_dir: str | None = None

    @property
    def slots_here(self) -> int:
        """Devices that this process trains on."""
        return self.slots // self.workers


class EnvContext:
    """A trial and where it runs; with `HorovodContext` what Determined's contexts were made of.

    A class of the user's that derives from a context is called with both, and hands them on::

        class MyContext(TFKerasTrialContext):
            def __init__(self, env, hvd_config):
                super().__init__(env, hvd_config)

    Attributes:
        run: the trial.
        experiment_config: as the user wrote it.
        hparams: this trial's values.
        trial_seed: of this trial.
        managed_training: whether the harness trains.
        test_mode: whether it trains one batch only.
        det_trial_id: "1", "2", ...; empty outside of an experiment.
        det_experiment_id: "1"; empty outside of an experiment.

    Source: `determined.EnvContext` of Determined 0.12 and 0.13.
    """

    def __init__(
        self,
        *,
        experiment_config: Mapping[str, Any],
        hparams: Mapping[str, Any],
        trial_seed: int = 0,
        managed_training: bool = True,
        det_trial_id: str = "",
        det_experiment_id: str = "",
        **others: Any,
    ) -> None:
        """Takes what the original took, of which `others` say nothing here, but can be asked."""
        self.__dict__.update(others)
        self.experiment_config = ExperimentConfig(experiment_config)
        self.hparams = dict(hparams)
        self.trial_seed = trial_seed
        self.managed_training = managed_training
        self.test_mode = bool(others.get("test_mode"))
        self.det_trial_id, self.det_experiment_id = det_trial_id, det_experiment_id
        self.run = TrialRun(
            trial_id=int(det_trial_id or 1),
            config=self.experiment_config,
            hparams=self.hparams,
            seed=trial_seed,
            slots=self.experiment_config.slots_per_trial(),
        )

    @classmethod
    def of(cls, run: TrialRun, *, managed_training: bool = True) -> EnvContext:
        """Returns that of a trial."""
        env = cls(
            experiment_config=run.config,
            hparams=run.hparams,
            trial_seed=run.seed,
            managed_training=managed_training,
            det_trial_id=str(run.trial_id) if managed_training else "",
            det_experiment_id="1" if managed_training else "",
            latest_checkpoint=run.checkpoint_dir,
        )
        env.run = run
        return env


@dataclasses.dataclass(frozen=True)
class HorovodContext:
    """How the slots of a trial add up gradients: `optimizations` of the configuration.

    Attributes:
        use: whether there are several processes.
        aggregation_frequency: batches whose gradients make one step.
        average_aggregated_gradients: whether these are averaged, or else summed up.

    Source: `determined.horovod.HorovodContext` of Determined 0.12 and 0.13.
    """

    use: bool = False
    aggregation_frequency: int = 1
    fp16_compression: bool = False
    grad_updates_size_file: str | None = None
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = False

    @classmethod
    def of(cls, run: TrialRun) -> HorovodContext:
        """Returns what the configuration of a trial says."""
        given = run.config.get("optimizations") or {}
        return cls(
            use=run.workers > 1,
            aggregation_frequency=int(given.get("aggregation_frequency") or 1),
            fp16_compression=bool(given.get("gradient_compression")),
            grad_updates_size_file=given.get("grad_updates_size_file"),
            average_aggregated_gradients=given.get("average_aggregated_gradients") is not False,
            average_training_metrics=bool(given.get("average_training_metrics")),
        )


class Trial:
    """What the base classes of the trial APIs have in common.

    Attributes:
        is_script: whether a script builds the trial, in a job of its own on a cluster.
    """

    is_script = False

    @classmethod
    def open_controller(cls, run: TrialRun) -> Controller:
        """Builds the trial, restored from `run.checkpoint_dir` where there is one."""
        raise NotImplementedError(f"{cls.__name__} belongs to no trial API")

    @classmethod
    def global_batch_size(cls, run: TrialRun) -> int:
        """Returns what turns records into batches: the hyperparameter of that name.

        Raises:
            ConfigurationError: there is none, or it is no whole number.
        """
        names = ("global_batch_size", "batch_size")
        size = next((run.hparams[name] for name in names if name in run.hparams), None)
        if not isinstance(size, int) or size < 1:
            raise ConfigurationError(
                "Lengths in records or epochs need the hyperparameter global_batch_size, a whole "
                f"number above 0, but got {size!r}. Give lengths as {{'batches': number}} instead."
            )
        return size


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
        run = dataclasses.replace(run, hparams={"global_batch_size": size, **run.hparams})
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
        return make(ExperimentConfig.with_defaults(run.config), dict(run.hparams))


def trial_classes(module: ModuleType) -> list[type[Any]]:
    """Returns the trial classes that an imported module defines."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Trial)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]


def chosen_class(module: ModuleType, entrypoint: str | None) -> type[Any]:
    """Returns the trial class that `entrypoint` names, such as "model_def:MyTrial".

    Without one, or where the module has nothing of that name, it is the only one that is defined.
    """
    found = trial_classes(module)
    name = (entrypoint or "").rpartition(":")[2].rpartition(".")[2]
    named = getattr(module, name, None) if name else None
    if named in found:
        return named  # type: ignore[no-any-return]
    if len(found) > 1:
        names = ", ".join(sorted(trial.__name__ for trial in found))
        raise ModuleFileError(
            f"Module {module.__name__!r} defines several trials ({names}) and no run_fn that says "
            f"which to run: add `run_fn = run_fn_from_trial({found[-1].__name__})`, from "
            "generic_trainer.trials, or name one as `entrypoint` of the experiment configuration: "
            f'"{module.__name__}:{found[-1].__name__}"'
        )
    return found[0]


def sole_trial(config: Mapping[str, Any]) -> TrialRun:
    """Returns trial 1 on one slot; hyperparameters are drawn with the seed of the experiment.

    Raises:
        ConfigurationError: a hyperparameter is none.
    """
    kept = {name: part for name, part in checked(config).items() if name not in _CLUSTER_ONLY}
    seed = ExperimentConfig(kept).experiment_seed()
    hparams = sample(parse_hyperparameters(kept.get("hyperparameters") or {}), seed)
    return TrialRun(trial_id=1, config=kept, hparams=hparams, seed=seed)


_current: contextvars.ContextVar[TrialRun] = contextvars.ContextVar("current_trial")


@contextlib.contextmanager
def current(run: TrialRun) -> Iterator[None]:
    """Makes a trial the one that the functions below tell about."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


def get_experiment_config() -> ExperimentConfig:
    """Returns the experiment configuration of the running trial.

    Raises:
        ConfigurationError: no trial is running.
    """
    return ExperimentConfig.with_defaults(_running().config)


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
    found = get_hyperparameters()
    if name not in found:
        raise ConfigurationError(f"There is no hyperparameter {name!r}; there are {sorted(found)}")
    return found[name]


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
    """Returns the trial with the directory of `download_data`, where its module defines that."""
    download = module_function(trial_class, "download_data")
    if download is None or run.download_dir is not None:
        return run
    config = ExperimentConfig.with_defaults(run.config)
    return dataclasses.replace(run, download_dir=download(config, dict(run.hparams)))


def code_file(module: str) -> str | None:
    """Returns the file of a module; None if it has none, in a notebook say."""
    return getattr(sys.modules.get(module), "__file__", None)


def module_function(trial_class: type[Any], name: str) -> Callable[..., Any] | None:
    """Returns a function of the class's module, its package, or where the user imports both."""
    own = trial_class.__module__
    modules = [sys.modules[one] for one in (own, own.rpartition(".")[0]) if one in sys.modules]
    for module in (*loaded_modules(), sys.modules["__main__"]):
        if vars(module).get(trial_class.__name__) is trial_class:
            modules.append(module)
    functions = (getattr(module, name, None) for module in modules)
    return next(filter(callable, functions), None)


def current_run() -> TrialRun | None:
    """Returns the running trial; None if there is none."""
    return _current.get(None)


def _running() -> TrialRun:
    run = current_run()
    if run is None:
        raise ConfigurationError(
            "This can be asked only while a trial runs, in code that its methods call, and not "
            "when the module is imported."
        )
    return run
