"""`TensorFlowTrial`, the base class of users' trials that are TF1 graphs, and its controller."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import did_you_mean
from generic_trainer.errors import ConfigurationError, ModuleFileError, raise_problems
from generic_trainer.training import distributed
from generic_trainer.training.resume import not_ahead, undrawn
from generic_trainer.trials._context import average, fit_to_workers, seed_generators
from generic_trainer.trials._trial import LOADERS, HparamsTrial, TrialRun
from generic_trainer.trials.tensorflow._serving import export, find_predictions

_CHECKPOINT = "model.ckpt"
_LOSS = "loss"
SHARE = ""  # the share of a batch among its metrics: no name of the user's

tf1 = tf.compat.v1


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
            ExportError: the graph has no prediction.
        """
        run, _ = fit_to_workers(run, is_graph=True)
        seed_generators(run.seed)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf1.set_random_seed(run.seed)
            trial = self._trial = trial_class(dict(run.hparams))
            training, validation = _datasets(trial_class, run)
            # Skipping in a seeded pipeline leads to the batch that the straight run would see next.
            training = not_ahead(training.repeat().skip(run.batches_trained))
            if run.workers > 1:  # each takes other batches
                validation = validation.shard(run.workers, distributed.rank())
            self._training = tf1.data.make_initializable_iterator(training)
            self._validation = tf1.data.make_initializable_iterator(validation)
            self._is_training = tf1.placeholder_with_default(False, [], "is_training")
            record = tf.cond(self._is_training, self._training.get_next, self._validation.get_next)
            built = build(trial, record, self._is_training, run)
            self._record, self._outputs, self._train_op = built
            self._served = find_predictions(self._record, self._outputs)
            self._metrics = _metrics(trial, self._outputs, run)
            self._saver = tf1.train.Saver(max_to_keep=None)
            self._reset = tf1.local_variables_initializer()
            initialise = [tf1.global_variables_initializer(), self._reset, tf1.tables_initializer()]
            self._counted = tf1.get_collection(tf1.GraphKeys.METRIC_VARIABLES)
            self._session = tf1.Session(config=trial.session_config())
            self._session.run(initialise)
            number = self._session.run(validation.cardinality())
            if self._metrics["validation"] and number == tf.data.INFINITE_CARDINALITY:
                raise ModuleFileError(f"{LOADERS}: the validation Dataset repeats forever")
            if run.checkpoint_dir is not None:
                self._restore(run.checkpoint_dir)
            distributed.start_session_alike(self._session)
            self._session.run(self._training.initializer)

    @property
    def stop_requested(self) -> bool:
        return self._trial.stop_requested

    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches and returns the metrics, averaged over them."""
        self._session.run(self._reset)
        step = self._step("training", self._train_op)
        try:
            with distributed.explained_failures():
                return average((step() for _ in range(batches)), SHARE)
        except tf.errors.OutOfRangeError as error:  # of a Dataset that repeats for ever
            raise ModuleFileError(f"{LOADERS}: the training Dataset has no batch") from error

    @undrawn()
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
        both = {name: self._outputs[name] for name in metrics}
        pairs = {name: output[0] for name, output in both.items() if isinstance(output, tuple)}
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
            export(self._session, *self._served, fn_args)

    def close(self) -> None:
        self._session.close()

    def _restore(self, directory: str) -> None:
        with self._graph.as_default():
            self._saver.restore(self._session, os.path.join(directory, _CHECKPOINT))

    def _step(self, kind: str, *operations: tf.Operation) -> Callable[[], dict[str, Any]]:
        """Returns a function that runs a step, and returns its metrics."""
        names = (*self._metrics[kind], SHARE)
        fetched = {name: _updated(self._outputs[name]) for name in names}
        # Outputs need not depend on the record, but a step has to take one: passes would not end.
        record = tf.nest.flatten(self._record, expand_composites=True)
        fetches = (fetched, [*operations, record[0].op])
        fed = {self._is_training: kind == "training"}
        return lambda: self._session.run(fetches, fed)[0]  # type: ignore[no-any-return]


def build(
    trial: Any, record: Any, is_training: tf.Tensor, run: TrialRun
) -> tuple[Any, dict[str, Any], tf.Operation]:
    """Builds the graph of a trial, on all of a batch or on the share of one of several workers.

    In training each of several workers takes its rows of the batch. The gradients are, for a loss
    that is a mean over rows, those of one worker on all of it.

    Args:
        trial: a `TensorFlowTrial`.
        record: a batch, nested tensors [N, ...].
        is_training: bool scalar.
        run: the trial.

    Returns:
        The argument of `build_graph`; its results, and as `SHARE` the share of the batch, from 0 to
        1; and the operation of a step, of all workers together.

    Raises:
        ModuleFileError: the result of `build_graph` has no loss.
    """
    rows = whole = tf.constant(1)
    averaging: Any = contextlib.nullcontext(lambda step: step)
    if run.workers > 1:
        rank = distributed.rank()
        whole = distributed.number_of_rows(record)
        parts = tf.where(is_training, tf.clip_by_value(whole, 1, run.workers), 1)
        record = distributed.share_of_rows(record, tf.minimum(rank, parts - 1), parts)
        # A worker that is left without rows has those of another one, which have no weight: the
        # mean over no rows is not a number.
        is_spare = is_training & (rank >= parts)
        rows = tf.where(is_spare, 0, distributed.number_of_rows(record))
        averaging = distributed.averaging_optimizers(rows)
    # Operations that make several parts of a record cannot be replaced by the inputs of an export.
    record = tf.nest.map_structure(tf.identity, record, expand_composites=True)
    counter = tf1.train.get_or_create_global_step()
    outputs = _checked(trial.build_graph(record, is_training))
    # Metrics are those of the weights that the step begins with.
    metrics = [_updated(outputs[name]) for name in trial.training_metrics() if name in outputs]
    with tf.control_dependencies(metrics), averaging as completed:
        optimizer = trial.optimizer()
        # Batch normalisation keeps its moving averages in this collection.
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            step = completed(optimizer.minimize(outputs[_LOSS], global_step=counter))
    return record, {**outputs, SHARE: rows / whole}, step


def _updated(metric: Any) -> Any:
    """Returns the tensor that a batch yields: that of a pair (value, update) is the update."""
    return metric[1] if isinstance(metric, tuple) else metric


def _checked(outputs: Any) -> dict[str, tf.Tensor]:
    if not isinstance(outputs, dict) or _LOSS not in outputs:
        raise ModuleFileError(
            f"build_graph must return a dict of tensors with the key {_LOSS!r}, but got "
            f"{sorted(outputs) if isinstance(outputs, dict) else outputs!r}"
        )
    return {
        name: tuple(output) if isinstance(output, list) else output
        for name, output in outputs.items()
    }


def _datasets(trial_class: type[TensorFlowTrial], run: TrialRun) -> tuple[Any, Any]:
    match trial_class.load_data(run):
        case (tf.data.Dataset() as training, tf.data.Dataset() as validation):
            pass
        case loaded:
            raise ModuleFileError(
                f"{LOADERS} must return two tf.data.Datasets, the training and the validation "
                f"data, but got {loaded!r}"
            )
    if not _compatible(training.element_spec, validation.element_spec):
        raise ModuleFileError(
            f"{LOADERS} must return Datasets of the same structure, shapes and types. Training: "
            f"{training.element_spec}; validation: {validation.element_spec}"
        )
    return training, validation


def _compatible(first: Any, second: Any) -> bool:
    def fits(a: Any, b: Any) -> bool:  # in all but the number of rows
        return bool(a.dtype == b.dtype and a.shape[1:].is_compatible_with(b.shape[1:]))

    try:
        return all(tf.nest.flatten(tf.nest.map_structure(fits, first, second)))
    except (TypeError, ValueError):
        return False


def _metrics(
    trial: TensorFlowTrial, outputs: dict[str, Any], run: TrialRun
) -> dict[str, list[str]]:
    training = list(trial.training_metrics())
    validation = list(trial.validation_metrics())
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
    if _LOSS in training:
        problems.append(f"training_metrics must not name {_LOSS!r}: it is always reported")
    raise_problems(ConfigurationError, type(trial).__name__, problems)
    return {"training": [_LOSS, *training], "validation": validation}


def _until_end(step: Callable[[], dict[str, Any]]) -> Iterable[dict[str, Any]]:
    while True:
        try:
            yield step()
        except tf.errors.OutOfRangeError:
            return
