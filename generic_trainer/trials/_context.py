"""The context of a trial, the base of every API's, and the process and devices of a trial.

Source: `TrialContext` and `NativeContext` of Determined 0.12 and 0.13.
"""

import dataclasses
import logging
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import tensorflow as tf

from generic_trainer._core.cluster import training_addresses
from generic_trainer._core.files import is_remote
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed, get_strategy
from generic_trainer.trials._config import ExperimentConfig
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials._gone import NamesSuccessors
from generic_trainer.trials._pipeline import Pipeline, current_pipeline, get_pipeline
from generic_trainer.trials._trial import HorovodContext, TrialRun, global_batch_size, sole_trial
from generic_trainer.trials.errors import CheckFailedError, InvalidArgumentsError

NO_DATASET = (
    "Please pass your datasets (train and test) into `context.wrap_dataset(dataset)` right after "
    "creating them, or cache them with `context.experimental`."
)

# Between the seeds of the datasets of a trial: those of further trials are the next numbers.
_BETWEEN_SEEDS = 1_000_003
# The name of a Dataset of the records that this process reads.
_SHARE = "share_of_a_worker"

_logger = logging.getLogger(__name__)

C = TypeVar("C", bound="TrialContext")


class DistributedContext(NamesSuccessors):
    """The place of this process among those that train the trial, and what they exchange.

    Values that are exchanged are numbers, strings, arrays, containers of them, and objects of the
    user's own classes; see `generic_trainer.training.distributed.gather`.
    """

    def __init__(self, slots: int) -> None:
        """Takes the number of slots of the trial, in all processes together."""
        self._slots = slots
        self._rank = distributed.rank()
        addresses = training_addresses().values()  # by rank
        self._hosts = [address.rpartition(":")[0] for address in addresses]

    def get_rank(self) -> int:
        """Returns the rank of this process; 0 is the one that writes checkpoints."""
        return self._rank

    def get_local_rank(self) -> int:
        """Returns the rank of this process among those on its machine."""
        return self._local_ranks.index(self._rank)

    def get_size(self) -> int:
        """Returns the number of slots of the trial."""
        return self._slots

    def get_num_agents(self) -> int:
        """Returns the number of machines."""
        return len({*self._hosts})

    rank = property(get_rank)
    local_rank = property(get_local_rank)
    size = property(get_size)
    cross_size = property(get_num_agents)

    @property
    def cross_rank(self) -> int:
        """The number of this machine, from 0, in the order of their first processes."""
        return [*dict.fromkeys(self._hosts)].index(self._hosts[self._rank])

    @property
    def local_size(self) -> int:
        """The number of processes on this machine."""
        return len(self._local_ranks)

    @property
    def _local_ranks(self) -> list[int]:
        here = self._hosts[self._rank]
        return [rank for rank, host in enumerate(self._hosts) if host == here]

    def allgather(self, stuff: Any) -> list[Any]:
        """Returns the values of all processes, by rank."""
        return distributed.gather(stuff)

    def gather(self, stuff: Any) -> list[Any] | None:
        """Returns the values of all processes, by rank, to that of rank 0; None to the others."""
        values = self.allgather(stuff)
        return None if self._rank else values

    def broadcast(self, stuff: Any) -> Any:
        """Returns the value of the process of rank 0, in all of them."""
        return self.allgather(None if self._rank else stuff)[0]

    def allgather_local(self, stuff: Any) -> list[Any]:
        """Returns the values of the processes on this machine, by rank.

        All processes of the trial must call this, and the other methods for one machine.
        """
        values = self.allgather(stuff)
        return [values[rank] for rank in self._local_ranks]

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Returns the values on this machine in its first process; None in the others."""
        values = self.allgather_local(stuff)
        return None if self.local_rank else values

    def broadcast_local(self, stuff: Any) -> Any:
        """Returns the value of the first process of this machine."""
        return self.allgather_local(None if self.local_rank else stuff)[0]


class TrialContext(NamesSuccessors):
    """A trial's configuration, hyperparameters, batch sizes, seed and place.

    Attributes:
        distributed: the place of this process among those that train the trial.
        env: the trial, as Determined had it.
        experimental: `cache_train_dataset` and `cache_validation_dataset`.
        hvd_config: how its slots add up gradients.
    """

    experimental_class = DatasetCache
    _scratch: ScratchFolder | None = None

    def __init__(self, env: TrialRun, hvd_config: HorovodContext | None = None) -> None:
        """Takes a trial.

        Raises:
            InvalidArgumentsError: there is no `global_batch_size`, or it is below the slots.
            CheckFailedError: it is not a whole number, or an optimization is set that TensorFlow's
                trials do not have.
        """
        self.env = self._run = env
        self.hvd_config = hvd_config or HorovodContext(env.workers > 1)
        self._config = env.experiment_config
        _check_optimizations(self._config.get("optimizations") or {}, env.hparams)
        self._batch_size = global_batch_size(env.hparams.get("global_batch_size"), env.slots)
        self._stop_requested = self._has_dataset = False
        self._reads = 0  # of training data
        self.distributed = DistributedContext(env.slots)
        self.experimental: Any = self.experimental_class(self)
        # Threads that read data know of no current pipeline.
        self._pipeline = current_pipeline()

    @classmethod
    def from_config(cls: type[C], config: Mapping[str, Any]) -> C:
        """Returns a context outside of any experiment, for a notebook or a debugger.

        One slot; hyperparameters are drawn with the seed; nothing is wrapped. The sections
        bind_mounts, checkpoint_storage, environment, resources and optimizations have no effect,
        but an `aggregation_frequency` above 1, which would change the steps, is an error here too.

        Args:
            config: an experiment configuration, or as much of it as the model needs.

        Raises:
            ConfigurationError: as the constructor, or a hyperparameter is none.
        """
        run = dataclasses.replace(sole_trial(config), managed_training=False)
        return cls(run, HorovodContext())

    @property
    def pipeline(self) -> Pipeline:
        """What a `run_fn` sees: files, schema, statistics, base model and all else.

        Raises:
            ConfigurationError: there is none, outside of a pipeline.
        """
        return self._pipeline or get_pipeline()

    def read_examples(self, split: Literal["train", "eval"], label_key: str | None = None) -> Any:
        """Returns the component's examples in batches, wrapped: a data loader in one line.

        ::

            def build_training_data_loader(self):
                return self.context.read_examples("train", label_key="species")

        Training data are shuffled by the seed of the trial, without an end; those of another call
        have another order, so that both can be zipped. Validation data are one pass, or
        `eval_args.num_steps` batches of it.

        Args:
            split: "train" or "eval".
            label_key: the feature that is the label.

        Returns:
            A Dataset of (features, label); features are a dict of tensors [batch, ...].

        Raises:
            ConfigurationError: the pipeline or its schema is missing.
            DataError: the files cannot be read.
        """
        size = self.get_per_slot_batch_size()
        seed = self.get_trial_seed() + _BETWEEN_SEEDS * self._reads
        self._reads += split == "train"
        data = self.pipeline.examples(split, size, label_key, seed=seed)
        if split == "eval" and getattr(self.pipeline, "eval_steps", None):
            data = data.take(self.pipeline.eval_steps * self.get_global_batch_size() // size)
        return self.wrap_dataset(data)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Returns the records that this process reads of a Dataset for training or validation.

        Alone it reads all of it, and its slots take batch after batch. Must be called for training
        data, unless they are cached.

        Args:
            dataset: a `tf.data.Dataset` of records, or of batches of the batch size per slot.
            shard_dataset: whether each of n workers takes every n-th record; else all read all.
        """
        self._has_dataset = True
        return self.share_of(dataset, shard=shard_dataset)

    def share_of(self, dataset: Any, *, shard: bool = True) -> Any:
        """Returns the records that this process reads of a Dataset, marked as sharded.

        With `shard`, each of n workers takes every n-th; else they all take all. They take all of
        global batches, and of values other than Datasets. What is marked already stays as it is.
        """
        is_dataset = isinstance(dataset, (tf.data.Dataset, tf.compat.v1.data.Dataset))
        if self._run.workers == 1 or not is_dataset:
            return dataset
        if distributed.options_of(dataset).dataset_name == _SHARE:
            return dataset
        policies = tf.data.experimental.AutoShardPolicy
        options = tf.data.Options()
        options.dataset_name = _SHARE
        options.experimental_distribute.auto_shard_policy = policies.OFF
        if self.takes_whole_batches:  # TensorFlow is not to divide them by files
            options.experimental_distribute.auto_shard_policy = policies.DATA
        elif shard:
            dataset = dataset.shard(self._run.workers, distributed.rank())
        return dataset.with_options(options)

    @property
    def takes_whole_batches(self) -> bool:
        """Whether batches are global ones, of which each slot takes its rows."""
        return self._run.has_global_batches or self._config.native_parallel_enabled()

    def get_experiment_config(self) -> ExperimentConfig:
        """Returns the experiment configuration, with defaults for fields that it leaves out."""
        return self._config

    def get_data_config(self) -> dict[str, Any]:
        """Returns the section `data` of the experiment configuration."""
        return self._config.get("data") or {}

    def get_hparams(self) -> dict[str, Any]:
        """Returns this trial's values of the hyperparameters."""
        return dict(self._run.hparams)

    def get_hparam(self, name: str) -> Any:
        """Returns this trial's value of a hyperparameter.

        Raises:
            ConfigurationError: there is none of this name; also a ValueError.
        """
        if name not in self._run.hparams:
            raise ConfigurationError(
                f"Could not find name '{name}' in experiment hyperparameters. Please check your "
                "experiment configuration 'hyperparameters' section."
            )
        if name == "global_batch_size":
            _logger.warning("Use get_per_slot_batch_size() or get_global_batch_size() instead.")
        return self._run.hparams[name]

    def get_global_batch_size(self) -> int:
        """Returns the records in a training step, a multiple of the slots."""
        return self._batch_size

    def get_per_slot_batch_size(self) -> int:
        """Returns the records that a slot takes in a training step.

        With `resources.native_parallel` it is the global batch size: each batch is divided.
        """
        return self._batch_size // (1 if self.takes_whole_batches else self._run.slots)

    def get_trial_seed(self) -> int:
        """Returns the seed of this trial."""
        return self._run.seed

    def get_trial_id(self) -> int:
        """Returns the number of this trial in its experiment, from 1 on.

        Raises:
            ConfigurationError: this is not a trial of an experiment; also a ValueError.
        """
        self._check_managed("trial")
        return self._run.trial_id

    def get_experiment_id(self) -> int:
        """Returns the number of the experiment: 1, the only one in its pipeline step.

        Raises:
            ConfigurationError: this is not a trial of an experiment; also a ValueError.
        """
        self._check_managed("experiment")
        return 1

    def get_initial_batch(self) -> int:
        """Returns the batches that the trial had been trained on when it was built or restored."""
        return self._run.batches_trained

    def get_tensorboard_path(self) -> Path:
        """Returns the directory for event files of this trial, which the ModelRun artifact keeps.

        Files of the workers other than the first, and of trials outside of an experiment, are
        deleted with the context.

        Raises:
            ConfigurationError: the artifact is in a remote file system, which a path cannot name.
        """
        directory = self._run.log_dir
        if directory is None:
            self._scratch = self._scratch or ScratchFolder("tensorboard-")
            directory = self._scratch.path
        if is_remote(directory):
            raise ConfigurationError(
                f"get_tensorboard_path: {directory} is remote, and cannot be a pathlib.Path. Write "
                "with tf.summary.create_file_writer, below get_pipeline().model_run_dir."
            )
        return Path(directory)

    def get_stop_requested(self) -> bool:
        """Returns whether the trial is to stop after this workload."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Asks the trial to stop after this workload, with a checkpoint.

        Raises:
            InvalidArgumentsError: it is not a boolean; also an AssertionError.
        """
        if not isinstance(stop_requested, bool):
            raise InvalidArgumentsError(
                f"stop_requested must be a boolean, but got {stop_requested!r}"
            )
        _logger.info("A trial stoppage has been requested: %s", stop_requested)
        self._stop_requested = stop_requested

    def _check_managed(self, what: str) -> None:
        if not self._run.managed_training:
            raise ConfigurationError(
                f"A context made by from_config belongs to no {what} and has no number."
            )


class NativeContext(TrialContext):
    """The context of a script.

    Source: `determined.NativeContext` of Determined 0.12 and 0.13.
    """


def _check_optimizations(optimizations: Mapping[str, Any], hparams: Mapping[str, Any]) -> None:
    misplaced = {"aggregation_frequency", "gradient_compression"} & hparams.keys()
    if misplaced:
        raise CheckFailedError(
            f"Please specify {' and '.join(sorted(misplaced))} under `optimizations` in experiment "
            "config, not under `hyperparameters`."
        )
    precision = optimizations.get("mixed_precision", "O0")
    if precision != "O0":
        raise CheckFailedError(
            f"optimizations.mixed_precision must be O0 for TensorFlow, but got {precision!r}. Set "
            "tf.keras.mixed_precision in the model's code instead."
        )


def seed_generators(seed: int) -> None:
    """Sets Python's, NumPy's and TensorFlow's, before any of the trial's code runs."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)


def fit_to_workers(
    run: TrialRun, *, is_graph: bool = False
) -> tuple[TrialRun, tf.distribute.Strategy]:
    """Returns the trial with the slots that there are, and the strategy to train it in.

    1. In a cluster of workers each of them is a slot, regardless of the configuration. Where Keras
       2 trains on several GPUs of a worker, each of these is a slot; a graph of TensorFlow 1
       (`is_graph`) trains on one device of each worker.
    2. A process alone is one slot, which trains on whole global batches: slower, and the same
       steps.
    """
    workers = distributed.size()
    # Before anything else of TensorFlow.
    strategy = get_strategy() if workers > 1 else tf.distribute.get_strategy()
    slots = workers if is_graph else max(strategy.num_replicas_in_sync, workers)
    if run.slots not in (0, 1, slots):  # 0 was for CPUs
        _logger.warning(
            "resources.slots_per_trial is %d, but the trial has %d, one for each worker: "
            "Distribution(launcher='local', num_workers=...) starts more.",
            run.slots,
            slots,
        )
    return dataclasses.replace(run, slots=slots, workers=workers), strategy


def average(batches: Iterable[Mapping[str, Any]], weight: str | None = None) -> dict[str, Any]:
    """Returns the mean of each metric, a number or nested lists, over the batches of all workers.

    A metric that is missing somewhere, or differs in shape, is left out.

    Args:
        batches: the metrics of each batch of this worker.
        weight: the entry of a batch by which it counts; without one all count alike.
    """
    slots = [batch for worker in distributed.gather([*batches]) for batch in worker]
    weights = None if weight is None else [slot[weight] for slot in slots]
    means = {}
    for name in [name for name in slots[0] if name != weight] if slots else ():
        values = [slot.get(name) for slot in slots]
        if not any(value is None for value in values) and len({*map(np.shape, values)}) == 1:
            means[name] = np.average(np.asarray(values, float), axis=0, weights=weights).tolist()
    return means
