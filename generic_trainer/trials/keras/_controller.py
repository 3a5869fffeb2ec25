"""The controller of a Keras trial: training, validation, checkpoints and export of its model."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.values import unpickled_data
from generic_trainer.errors import ExportError, ModuleFileError
from generic_trainer.training import distributed, keras_2_left_alone
from generic_trainer.training.export import export_model, export_on_tensors, inference_arguments
from generic_trainer.training.resume import (
    OF_PROCESS,
    ModelState,
    fitting,
    pickled,
    random_state,
    set_random_state,
    undrawn,
)
from generic_trainer.trials._context import average
from generic_trainer.trials._pipeline import are_features, signature_spec
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.keras._data import TRAINING, VALIDATION, make_data, weighted
from generic_trainer.trials.keras._dispatch import Dispatch, numbers_of
from generic_trainer.trials.keras._means import keras_2_means

if TYPE_CHECKING:
    from generic_trainer.trials.keras._context import TFKerasContext

_NO_BATCH = f"{VALIDATION}: the validation data have no batch"
_LONE_INPUT = "inputs"  # the name of a single one in the export
# What Keras calls inputs that the user has not named; it counts them, so they differ by chance.
_UNNAMED = re.compile(r"(keras_tensor|input|.*_input)(_\d+)?")

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Makes a method run eagerly, even if code of TensorFlow 1 has turned that off.

    A trial need not be in a `run_fn`, where Keras 2 is left alone already.
    """
    with distributed.eager_mode(), keras_2_left_alone(), keras_2_means():
        yield


class TFKerasController:
    """One compiled model, its data and callbacks, and its progress."""

    def __init__(
        self,
        context: TFKerasContext,
        run: TrialRun,
        training: Any,
        validation: Any,
        callbacks: Any,
        *,
        strategy: tf.distribute.Strategy,
    ) -> None:
        """Compiles the model; nothing is read or restored before it is needed.

        Raises:
            CheckFailedError: the model was not wrapped or not compiled, or data are too small.
            InvalidDataTypeException: data are of none of the kinds.
            InvalidArgumentsError: a callback needs epochs, and their length is unknown.
        """
        self._context = context
        self._run = run
        self._strategy = strategy
        with strategy.scope():
            self._model = context.compile_model()
        self._model.steps_per_execution = 1  # a call of the train function is a batch
        self._training = make_data(training, context, TRAINING)
        self._validation = make_data(validation, context, VALIDATION)
        records = int(context.get_experiment_config().get("records_per_epoch") or 0)
        per_epoch = max(records and 1, records // context.get_global_batch_size())
        params = {"verbose": context.fit_options.verbose, "epochs": 1, "steps": per_epoch or None}
        self._callbacks = Dispatch(callbacks, per_epoch, self._model, params)
        self._batches = run.batches_trained
        self._is_open = self._has_failed = False
        self._iterator: Any = None
        self._start_state: dict[str, Any] | None = None  # of generators, when reading began

    @property
    def stop_requested(self) -> bool:
        return self._context.get_stop_requested()

    @_eagerly()
    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches; returns the metrics as Keras has them after the last."""
        self._open()
        self._has_failed = True
        if self._iterator is None:
            self._iterator = self._begin_reading()
        callbacks = self._callbacks
        logs = {}
        self._model.reset_metrics()
        callbacks.call("on_train_workload_begin", self._batches, batches, {})
        for total in range(self._batches, self._batches + batches):
            callbacks.batch_begin(total)
            try:
                logs = self._of_a_slot(self._step(self._iterator))
            except (StopIteration, tf.errors.OutOfRangeError) as error:  # of data without an end
                raise ModuleFileError(f"{TRAINING}: the training data have no batch") from error
            callbacks.batch_end(total, logs)
        self._batches += batches
        if any("lr" in vars(optimizer) for optimizer in self._context.optimizers):
            raise ModuleFileError(
                "optimizer.lr = ... has no effect in Keras 3: set optimizer.learning_rate instead."
            )
        metrics = self._context.with_own_names(numbers_of(self._of_all_slots(logs)))
        callbacks.call("on_train_workload_end", self._batches, metrics)
        self._note_stop()
        self._has_failed = False
        return metrics

    @_eagerly()
    def validate(self) -> dict[str, Any]:
        """Returns the metrics of one pass over the validation data, `val_` before their names."""
        self._open()
        self._has_failed = True
        testing = self._callbacks.testing()
        results: Mapping[str, Any] = {}
        self._training.wait()  # the draws of what is read ahead are not the validation's
        with undrawn():
            data = self._validation.validation()
            try:
                # Keras divides batches that are the same on all workers.
                whole = distributed.without_length(data)
                results = self._model.evaluate(
                    whole, callbacks=testing, return_dict=True, verbose=0
                )
            except ValueError:  # Keras 2 raises it if there are no data
                if testing.batches or next(iter(data), None) is not None:
                    raise
        if not any(distributed.gather(testing.batches)):
            raise ModuleFileError(_NO_BATCH)
        if not is_keras_3(self._model):  # Keras 3 does so itself
            results = self._of_all_slots(self._of_a_slot(results))
        metrics = {f"val_{name}": value for name, value in numbers_of(results).items()}
        self._callbacks.call("on_test_end", metrics)
        self._note_stop()
        self._has_failed = False
        return self._context.with_own_names(numbers_of(metrics))

    @_eagerly()
    def save(self, directory: str) -> None:
        """Writes a checkpoint; then the callbacks add their files."""
        self._open()
        try:
            callbacks = pickled(self._callbacks.state(), self._callbacks.code)
        except ValueError as error:
            raise ModuleFileError(
                f"get_state() of a callback returns what a checkpoint cannot keep: {error}. "
                "Return numbers, texts, arrays, and lists, dicts or classes of your own of them."
            ) from error
        state = ModelState(self._model, self._context.optimizers)
        state.find_variables()
        generators = dict(zip(OF_PROCESS, self._training.generators or (), strict=False))
        values = {"generators": generators, "start": self._start_state}
        state.take({}, callbacks=callbacks, **values)(directory)
        if is_chief():
            self._callbacks.call("on_checkpoint_end", directory)

    @_eagerly()
    def export(self, fn_args: Any, checkpoint_dir: str | None = None) -> None:
        """Writes the model as a SavedModel, by default in its present state.

        Callbacks see the end of training before that.

        Raises:
            ExportError: the model cannot be called with its validation data, and has no
                generator.
        """
        sample = self._sample()
        averaging = self._averaging_optimizer()
        if not self._is_open:
            checkpoint_dir = checkpoint_dir or self._run.checkpoint_dir
            # A model need not call all its parts to predict, and an optimizer has the averages.
            is_built = self._model.built and self._model.weights and averaging is None
            if checkpoint_dir is not None and not is_built:
                self._build_for_training()
        if checkpoint_dir is None:
            self._average_weights(averaging)
        self._end()
        if checkpoint_dir is not None:
            state = ModelState(self._model, self._context.optimizers)
            with fitting(checkpoint_dir):
                state.read_weights(checkpoint_dir)
                if averaging is not None:
                    state.read()
            self._average_weights(averaging)
        export(*servable(self._model, sample[0]), fn_args)

    @_eagerly()
    def close(self) -> None:
        """Tells the callbacks, unless there was an error, and stops to read."""
        self._end()
        self._training.close()
        self._validation.close()

    def _averaging_optimizer(self) -> Any:
        optimizer = getattr(self._model, "optimizer", None)
        own = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales the loss
        return own if getattr(own, "use_ema", False) else None

    def _average_weights(self, optimizer: Any) -> None:
        """Gives the model its average weights, as `fit` does at its end."""
        if optimizer is not None and int(optimizer.iterations):
            with self._strategy.scope():
                optimizer.finalize_variable_values(self._model.trainable_variables)

    def _end(self) -> None:
        if self._is_open and not self._has_failed:
            self._callbacks.call("on_train_end", {})
        self._is_open = False

    def _step(self, iterator: Any) -> Any:
        """Trains on the next batch; a callback may have compiled the model once more."""
        model = self._model
        if model.train_function is None:  # Keras 3 sets it and returns nothing
            model.train_function = model.make_train_function() or model.train_function
        return model.train_function(iterator)

    def _open(self) -> None:
        """Restores the checkpoint, if there is one, and starts the callbacks."""
        if self._is_open:
            return
        directory = self._run.checkpoint_dir
        callbacks = None
        if directory is not None:
            self._build_for_training()
            self._training.replay(self._trained)
            state = ModelState(self._model, self._context.optimizers)
            with fitting(directory):
                state.read_weights(directory)
                callbacks = unpickled_data(state.saved["callbacks"], self._callbacks.code)
                state.read()
            set_random_state(None, state.saved["generators"])
            self._start_state = state.saved.get("start")
        self._model.stop_training = False
        self._callbacks.call("on_train_begin", {})
        if callbacks is not None:
            self._callbacks.load(callbacks)
        self._is_open = True

    def _build_for_training(self) -> None:
        """Makes all variables, of optimizers and metrics too, by a step on validation data.

        Training data are not touched: a shuffled Dataset that is iterated once more goes on in
        another order. What the step does to the variables is overwritten by the checkpoint.
        """
        sample = self._sample()
        parts = self._training.parts
        if parts == 3 and len(sample) == 2:  # validation data without the weights of training data
            sample = (*sample, tf.ones(tf.shape(tf.nest.flatten(sample[0])[0])[:1]))
        batch = sample[0] if self._training.is_bare else sample[:parts]
        data = self._read(tf.data.Dataset.from_tensors(batch).repeat())
        model = self._model
        if tf.distribute.get_strategy() is not model.distribute_strategy:
            model.evaluate(data, steps=1, verbose=0)  # makes what Keras 3 cannot in a replica
        self._step(iter(data))

    def _begin_reading(self) -> Any:
        """Returns an iterator over the training data, from the next batch on.

        Python code that makes a Dataset draws while the batches before are read again, as it did
        in the straight run.
        """
        if self._start_state is None:
            state = random_state()
            self._start_state = {name: state[name] for name in OF_PROCESS}
        elif self._training.is_of_python:
            set_random_state(None, self._start_state, in_all_workers=True)  # they are seeded alike
        return iter(self._read(self._training.training(self._trained)))

    def _read(self, data: tf.data.Dataset) -> Any:
        weights = self._context.fit_options.class_weight
        data = data if weights is None else weighted(data, weights)
        if self._run.workers == 1:
            return data
        if self._context.takes_whole_batches:
            return self._strategy.experimental_distribute_dataset(data)
        # Each slot takes another batch, of the size per slot.
        return self._strategy.distribute_datasets_from_function(lambda _: data)

    def _of_a_slot(self, logs: Any) -> Any:
        """Returns the means over all slots of what a step returns; Keras 2 adds it up."""
        if self._run.workers == 1 or is_keras_3(self._model):
            return logs
        return tf.nest.map_structure(lambda total: total / self._run.slots, logs)

    def _of_all_slots(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the metrics over all workers; `logs` are those of this one."""
        if self._run.workers == 1:
            return logs
        if is_keras_3(self._model):
            return internals.KERAS_3_RESULTS.of(self._model)(logs)  # type: ignore[no-any-return]
        results = self._model.get_metrics_result()
        means = average([numbers_of(logs)] if logs else [])
        return results if results.keys() == means.keys() else means

    @property
    def _trained(self) -> int:
        """Batches of the user's data that were trained on, as this process reads them."""
        is_whole = self._context.takes_whole_batches
        return self._batches * (1 if is_whole else self._run.slots // self._run.workers)

    def _sample(self) -> tuple[Any, ...]:
        """Returns a batch (x, y, ...); reading validation data disturbs nothing."""
        data = self._validation.validation()
        batch = next(iter(data.take(1)), None)
        self._validation.close()
        if batch is None:
            if self._run.workers == 1:
                raise ModuleFileError(_NO_BATCH)
            # Other workers have batches; `validate` has seen to that.
            batch = tf.nest.map_structure(
                lambda spec: tf.zeros([size or 1 for size in spec.shape], spec.dtype),
                data.element_spec,
            )
        return batch if isinstance(batch, tuple) else (batch,)

    def _note_stop(self) -> None:
        if self._model.stop_training:
            self._model.stop_training = False
            self._context.set_stop_requested(True)


def export(model: Any, x: Any, fn_args: Any) -> None:
    """Writes a model, without its optimizer.

    Its signature takes serialized tf.Examples where the pipeline's schema, or Transform's, has all
    of the model's inputs by name, else a tensor per input.

    Args:
        model: built.
        x: a batch of its inputs: a tensor, or a tuple or dict of them, each [N, ...].
        fn_args: the argument of `run_fn`.

    Raises:
        ExportError: an input is sparse or ragged, or the model cannot be called.
    """
    names = _names(model, x)
    if are_features(names, fn_args):
        export_model(model, fn_args, inputs=tf.nest.pack_sequence_as(x, names))
    else:
        specs = [*map(signature_spec, names, tf.nest.flatten(x))]
        inputs = tf.nest.pack_sequence_as(x, specs)
        export_on_tensors(model, inputs, fn_args.serving_model_dir)


def servable(model: Any, x: Any) -> tuple[Any, Any]:
    """Returns the model to serve, which may be its `generator`, and a batch for it.

    A model whose parts are called by its `train_step` need not have a `call`. The useful part of
    adversarial networks is the generator.
    """
    try:
        if _declared(model) or model(x, **inference_arguments(model)) is not None:
            return model, x
        reason: Exception = TypeError("call returns None")
    except Exception as error:  # of the user's code, or of Keras for want of it
        reason = error
    generator = getattr(model, "generator", None)
    inputs = getattr(generator, "inputs", None)
    if isinstance(generator, tf.keras.Model) and inputs:
        _logger.info("%s cannot be called; its generator is served", type(model).__name__)
        batch = []
        for tensor in inputs:
            shape = [size or 1 for size in tensor.shape]
            batch.append(tf.zeros(shape, tensor.dtype))
        return generator, batch[0] if len(batch) == 1 else tuple(batch)
    raise ExportError(
        f"{type(model).__name__} cannot be called with its validation data, as serving would: "
        "the result of its `call` is published, or that of its attribute `generator`, a model. "
        f"Return the outputs to serve from `call`. Found: {type(reason).__name__}: {reason}"
    ) from reason


def _names(model: Any, x: Any) -> list[str]:
    """Returns a name for each input, in the order in which `tf.nest` flattens them."""
    flat = tf.nest.flatten(x)
    if isinstance(x, Mapping):
        return list(tf.nest.flatten({key: str(key) for key in x}))
    declared = _declared(model)
    if len(declared) == len(flat) and not any(map(_UNNAMED.fullmatch, declared)):
        return declared
    return [_LONE_INPUT] if len(flat) == 1 else [f"{_LONE_INPUT}_{i}" for i in range(len(flat))]


def _declared(model: Any) -> list[str]:
    try:
        inputs = model.inputs or []
    except (AttributeError, ValueError):  # of a model that was not built from symbolic tensors
        return []
    return [str(tensor.name).partition(":")[0].replace("/", "_") for tensor in inputs]
