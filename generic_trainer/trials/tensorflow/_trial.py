"""`TensorFlowTrial`, the base class of users' trials that are TF1 graphs, and its controller."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError, ModuleFileError, raise_problems
from generic_trainer.training import distributed
from generic_trainer.trials._context import average, fit_to_workers
from generic_trainer.trials._trial import LOADERS, HparamsTrial, TrialRun
from generic_trainer.trials.tensorflow._graph import LOSS, SHARE, build, updated
from generic_trainer.trials.tensorflow._serving import export

_CHECKPOINT = "model.ckpt"


class TensorFlowTrial(HparamsTrial, abc.ABC):
    """A model as a TF1 graph.

    The module of a subclass also defines ``make_data_loaders(experiment_config, hparams)``, which
    returns the training and the validation data as batched `tf.data.Dataset`s of the same
    structure. It and the methods below are called within the trial's graph, each once per trial;
    each of several workers calls them for its share of a batch. All of them must get the same
    batches in the same order: seed random draws.

    Source: the documentation of PEDL's TensorFlowTrial.
    """

    @abc.abstractmethod
    def build_graph(self, record: Any, is_training: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph for training and validation.

        Args:
            record: an element of either Dataset: nested symbolic tensors, each [N, ...].
            is_training: bool scalar, True in training steps.

        Returns:
            Name → tensor, for everything that may be a metric; must hold "loss". A pair of
            `tf.metrics`, (value, update), is a validation metric over all batches together.
        """

    @abc.abstractmethod
    def optimizer(self) -> tf.compat.v1.train.Optimizer:
        """Returns the TF1 optimizer that minimises "loss"; called after `build_graph`."""

    @abc.abstractmethod
    def validation_metrics(self) -> list[str]:
        """Returns names out of `build_graph`'s result."""

    def training_metrics(self) -> list[str]:
        """Returns names out of `build_graph`'s result; "loss" is always reported."""
        return []

    stop_requested = False  # set to True, training ends after the workload, with a checkpoint

    def session_config(self) -> tf.compat.v1.ConfigProto:
        """Returns the configuration of the session."""
        return tf.compat.v1.ConfigProto(allow_soft_placement=True)

    def training_counter(self) -> tf.Tensor:
        """Returns the number of batches trained so far, an int64 scalar, for learning rates."""
        return tf.compat.v1.train.get_or_create_global_step()

    @classmethod
    def open_controller(cls, run: TrialRun) -> TensorFlowController:
        """Builds the graph and restores it from the checkpoint, if there is one."""
        return TensorFlowController(cls, run)


class TensorFlowController:
    """Trains, validates, saves and exports one trial."""

    def __init__(self, trial_class: type[TensorFlowTrial], run: TrialRun) -> None:
        """Builds the graph, opens a session and restores the checkpoint of the trial.

        Raises:
            ModuleFileError: the module has no `make_data_loaders`, or its result is wrong.
            ConfigurationError: the methods of the trial contradict each other.
        """
        run, _ = fit_to_workers(run, is_graph=True)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.compat.v1.set_random_seed(run.seed)
            trial = self._trial = trial_class(dict(run.hparams))
            training, validation = _datasets(trial_class, run)
            # Skipping in a seeded pipeline leads to the batch that the straight run would see next.
            self._training = tf.compat.v1.data.make_initializable_iterator(
                training.repeat().skip(run.batches_trained)
            )
            if run.workers > 1:  # each takes other batches
                validation = validation.shard(run.workers, distributed.rank())
            self._validation = tf.compat.v1.data.make_initializable_iterator(validation)
            self._handle = tf.compat.v1.placeholder(tf.string, [])
            self._iterator = tf.compat.v1.data.Iterator.from_string_handle(
                self._handle,
                tf.compat.v1.data.get_output_types(training),
                tf.compat.v1.data.get_output_shapes(training),
                tf.compat.v1.data.get_output_classes(training),
            )
            self._is_training = tf.compat.v1.placeholder_with_default(False, [], "is_training")
            record = self._iterator.get_next()
            # The parts of a sparse tensor come from one operation: an export is fed each of them.
            record = tf.nest.map_structure(tf.identity, record, expand_composites=True)
            tf.nest.assert_same_structure(training.element_spec, record)
            self._built = build(trial, record, self._is_training, run)
            self._metrics = _metrics(trial, self._built.outputs, run)
            self._saver = tf.compat.v1.train.Saver(max_to_keep=None)
            initialise = (
                tf.compat.v1.global_variables_initializer(),
                tf.compat.v1.local_variables_initializer(),
                tf.compat.v1.tables_initializer(),
            )
            self._reset = tf.compat.v1.local_variables_initializer()
            self._counted = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
            self._session = tf.compat.v1.Session(config=trial.session_config())
            self._session.run(initialise)
            if run.checkpoint_dir is not None:
                self._restore(run.checkpoint_dir)
            distributed.start_session_alike(self._session)
            self._session.run(self._training.initializer)
            iterators = {"training": self._training, "validation": self._validation}
            self._handles = self._session.run(
                {kind: iterator.string_handle() for kind, iterator in iterators.items()}
            )

    @property
    def stop_requested(self) -> bool:
        return self._trial.stop_requested

    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches and returns the metrics, averaged over them."""
        step = self._step("training", self._built.train_op)
        try:
            with distributed.explained_failures():
                return average((step() for _ in range(batches)), SHARE)
        except tf.errors.OutOfRangeError as error:  # of a Dataset that repeats for ever
            raise ModuleFileError(f"{LOADERS}: the training Dataset has no batch") from error

    def validate(self) -> dict[str, Any]:
        """Returns the metrics of one pass over the validation data, averaged over its batches.

        A pair of `tf.metrics` counts all batches of all workers together.
        """
        if not self._metrics["validation"]:
            return {}
        self._session.run([self._validation.initializer, self._reset])
        metrics = average(_until_end(self._step("validation")), SHARE)
        if not metrics:
            raise ModuleFileError(f"{LOADERS}: the validation Dataset has no batch")
        outputs = self._built.outputs
        pairs = {name: outputs[name][0] for name in metrics if isinstance(outputs[name], tuple)}
        if pairs and distributed.size() > 1:
            with self._graph.as_default():
                distributed.sum_in_session(self._session, self._counted)
        values = self._session.run(pairs)
        return {**metrics, **{name: np.asarray(value).tolist() for name, value in values.items()}}

    def save(self, directory: str) -> None:
        """Writes the variables, the optimizer's included."""
        path = os.path.join(directory, _CHECKPOINT)
        with self._graph.as_default():
            self._saver.save(self._session, path, write_meta_graph=False, write_state=False)

    def export(self, fn_args: Any, checkpoint_dir: str | None = None) -> None:
        """Writes a SavedModel of the outputs that do not depend on the labels."""
        if checkpoint_dir is not None:
            self._restore(checkpoint_dir)
        with distributed.eager_mode():  # code of TensorFlow 1 turns it off
            export(self._session, self._built.record, self._built.outputs, fn_args)

    def close(self) -> None:
        self._session.close()

    def _restore(self, directory: str) -> None:
        with self._graph.as_default():
            self._saver.restore(self._session, os.path.join(directory, _CHECKPOINT))

    def _step(self, kind: str, *operations: tf.Operation) -> Callable[[], dict[str, Any]]:
        """Returns a function that runs a step, and returns its metrics."""
        outputs = self._built.outputs
        fetched = {name: updated(outputs[name]) for name in (*self._metrics[kind], SHARE)}
        # Outputs need not depend on the record, but a step has to take one: passes would not end.
        record = tf.nest.flatten(self._built.record, expand_composites=True)
        fed = {self._handle: self._handles[kind], self._is_training: kind == "training"}
        fetches = (fetched, [*operations, record[0].op])
        return lambda: self._session.run(fetches, fed)[0]  # type: ignore[no-any-return]


def _datasets(trial_class: type[TensorFlowTrial], run: TrialRun) -> tuple[Any, Any]:
    loaded = trial_class.load_data(run)
    kinds = tf.compat.v1.data.Dataset | tf.data.Dataset
    is_pair = isinstance(loaded, (tuple, list)) and len(loaded) == 2
    if not (is_pair and all(isinstance(data, kinds) for data in loaded)):
        raise ModuleFileError(
            f"{LOADERS} must return two tf.data.Datasets, the training and the validation data, "
            f"but got {loaded!r}"
        )
    training, validation = loaded
    if not _compatible(training.element_spec, validation.element_spec):
        raise ModuleFileError(
            f"{LOADERS} must return Datasets of the same structure, shapes and types. Training: "
            f"{training.element_spec}; validation: {validation.element_spec}"
        )
    return training, validation


def _compatible(first: Any, second: Any) -> bool:
    try:
        tf.nest.assert_same_structure(first, second)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True)
    # The last batch may be partial in one and not in the other.
    return all(a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:]) for a, b in pairs)


def _metrics(
    trial: TensorFlowTrial, outputs: dict[str, Any], run: TrialRun
) -> dict[str, list[str]]:
    training, validation = list(trial.training_metrics()), list(trial.validation_metrics())
    problems = [
        f"{method} names {name!r}, which build_graph does not return; it returns {sorted(outputs)}"
        for method, names in (("training_metrics", training), ("validation_metrics", validation))
        for name in names
        if name not in outputs
    ]
    wanted = (run.config.get("searcher") or {}).get("metric")
    if wanted is not None and wanted not in validation:
        near = did_you_mean(wanted, validation)
        problems.append(f"searcher.metric: {wanted!r} is not among validation_metrics{near}")
    if LOSS in training:
        problems.append(f"training_metrics must not name {LOSS!r}: it is always reported")
    raise_problems(ConfigurationError, type(trial).__name__, problems)
    return {"training": [LOSS, *training], "validation": validation}


def _until_end(step: Callable[[], dict[str, Any]]) -> Iterable[dict[str, Any]]:
    while True:
        try:
            yield step()
        except tf.errors.OutOfRangeError:
            return
