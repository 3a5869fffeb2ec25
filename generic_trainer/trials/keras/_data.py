"""Training and validation data: the results of data loaders, as datasets of batches."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.resume import is_of_python, not_ahead
from generic_trainer.trials.errors import CheckFailedError, InvalidDataTypeException
from generic_trainer.trials.keras._sequence import SequenceAdapter

if TYPE_CHECKING:
    from generic_trainer.trials.keras._context import TFKerasContext

# What data loaders return, for annotations, under the names of Determined 0.12 and 0.13; the last
# one is that of the first release.
ArrayLike: TypeAlias = np.ndarray | list[np.ndarray] | dict[str, np.ndarray]
InputData: TypeAlias = tf.keras.utils.Sequence | tf.data.Dataset | SequenceAdapter | tuple[Any, ...]
KerasInputData: TypeAlias = InputData

_logger = logging.getLogger(__name__)

# The data loaders of a trial.
TRAINING = "build_training_data_loader"
VALIDATION = "build_validation_data_loader"
# Batches of a Sequence that are compared to find dimensions that vary.
_SAMPLES = 2


class Data:
    """Training or validation data, as Datasets of batches.

    Attributes:
        generators: state of Python's and NumPy's random generators that belongs to the batches
            taken so far; None where it is the present one.
        parts: 2 for batches (x, y), 3 with sample weights; None if that is not known.
        is_bare: whether batches are x alone, and not in a tuple.
    """

    generators: tuple[Any, Any] | None = None
    parts: int | None = None
    is_bare = False

    def __init__(self, training: tf.data.Dataset, validation: tf.data.Dataset) -> None:
        self._training = training
        self._validation = validation
        spec = training.element_spec
        self.is_bare = not isinstance(spec, tuple)
        self.parts = 1 if self.is_bare else len(spec)

    def training(self, start: int) -> tf.data.Dataset:
        """Returns batches without end, from the one after the first `start` on."""
        # Skipping in a seeded pipeline leads to the batch that the straight run would see next.
        return not_ahead(self._training.repeat().skip(start))

    def validation(self) -> tf.data.Dataset:
        """Returns the batches of one pass."""
        return self._validation

    @property
    def is_of_python(self) -> bool:
        """Whether Python code makes the training data whenever they are read from the start."""
        return is_of_python(self._training)

    def replay(self, batches: int) -> None:
        """Brings the user's own object to where it was after some batches of training."""

    def wait(self) -> None:
        """Returns when no thread reads ahead."""

    def close(self) -> None:
        """Stops to read."""


def make_data(data: Any, context: TFKerasContext, loader: str) -> Data:
    """Returns the data of a data loader, whatever kind they are of.

    Raises:
        InvalidDataTypeException: it is none of these.
        CheckFailedError: it is too small, or a Dataset that was not wrapped.
    """
    if isinstance(data, tuple) and len(data) in (2, 3):
        return _arrays(data, context, loader)
    if context.fit_options.shuffle and loader == TRAINING:
        _logger.warning("shuffle=True has no effect, except on arrays: shuffle in %s", loader)
    if isinstance(data, tf.data.Dataset):
        context.check_dataset()
        steps = context.fit_options.validation_steps
        validation = data if steps is None else data.take(steps)
        if loader == VALIDATION and validation.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise CheckFailedError(f"{loader} repeats forever: configure_fit(validation_steps=...)")
        return Data(data, validation)
    if isinstance(data, SequenceAdapter):
        return _Sequence(data, context.share)
    if hasattr(data, "__getitem__") and hasattr(data, "on_epoch_end"):  # a Sequence, or like one
        options = context.fit_options
        reading = (options.use_multiprocessing, options.workers, options.max_queue_size)
        return _Sequence(SequenceAdapter(data, *reading), context.share)
    raise _no_data(data, loader)


def _no_data(data: Any, loader: str, reason: str = "") -> InvalidDataTypeException:
    kind = type(data).__name__
    parts = f" of {', '.join(type(part).__name__ for part in data)}" if kind == "tuple" else ""
    return InvalidDataTypeException(
        f"{loader} must return (x, y) or (x, y, sample_weight) of arrays, or lists or dicts of "
        "arrays, with as many records each, a tf.data.Dataset, a keras.utils.Sequence or a "
        f"SequenceAdapter, but got {kind}{parts}{reason}"
    )


def weighted(dataset: tf.data.Dataset, class_weight: Mapping[int, float]) -> tf.data.Dataset:
    """Multiplies the weight of each record by that of its class.

    Args:
        dataset: batches (x, y) or (x, y, sample_weight), y as numbers [N] or [N, 1], or one-hot.
        class_weight: class, from 0 on → weight.
    """
    if sorted(class_weight) != list(range(len(class_weight))):
        raise ConfigurationError(
            "configure_fit(class_weight=...) must have the classes 0, 1, ... without a gap, but "
            f"got {sorted(class_weight)}"
        )
    weights = tf.constant([class_weight[index] for index in sorted(class_weight)], tf.float32)

    def add(x: Any, y: Any, sample_weight: Any = None) -> Any:
        one_hot = y.shape.rank is not None and y.shape.rank > 1 and y.shape[-1] != 1
        classes = tf.argmax(y, axis=-1) if one_hot else tf.reshape(tf.cast(y, tf.int64), [-1])
        weight = tf.gather(weights, classes)
        if sample_weight is not None:
            weight *= tf.cast(sample_weight, tf.float32)
        return x, y, weight

    return dataset.map(add)


def _arrays(data: tuple[Any, ...], context: TFKerasContext, loader: str) -> Data:
    """Returns the batches of arrays, in the order in which they are."""
    try:
        arrays = _standardized(tuple(map(_arrays_of, data)))
        with tf.device("CPU:0"):  # of all data, one batch at a time goes to an accelerator
            tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
            count = len(tf.data.Dataset.from_tensor_slices(tensors))
    except (IndexError, TypeError, ValueError) as error:
        raise _no_data(data, loader, f": {error}") from error
    size = context.get_per_slot_batch_size()
    whole = context.get_global_batch_size()
    least = whole if loader == TRAINING else 1
    if count < least:
        raise CheckFailedError(
            f"{loader}: the data must have at least {least} records"
            f"{' as a batch has' if loader == TRAINING else ''}, but have {count}"
        )

    def batch(number: tf.Tensor, is_whole: bool) -> Any:  # far faster than `batch` of the slices
        rows = slice(number * size, (number + 1) * size)

        def part(tensor: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tensor[rows], [size if is_whole else None, *tensor.shape[1:]])

        return tf.nest.map_structure(part, tensors)

    rank, workers = context.share
    # What is left over of the last global batch is dropped; each worker has as many of the others.
    batches = count // whole * (whole // size)
    training = tf.data.Dataset.range(batches)
    if context.fit_options.shuffle:  # in the same order on all workers
        training = training.shuffle(max(1, batches), seed=context.get_trial_seed())
    training = training.shard(workers, rank)
    validation = tf.data.Dataset.range(-(-count // size))
    # Stateful layers of Keras 3 need a size that is known.
    datasets = [training.map(functools.partial(batch, is_whole=True))]
    datasets.append(validation.map(functools.partial(batch, is_whole=count % size == 0)))
    return Data(*(dataset.prefetch(tf.data.AUTOTUNE) for dataset in datasets))


def _arrays_of(part: Any) -> Any:
    """Returns the arrays of x, y or weights; a list of one array is the array."""
    if isinstance(part, Mapping):
        return {name: np.asarray(leaf) for name, leaf in part.items()}
    if isinstance(part, list):
        arrays = [*map(np.asarray, part)]
        return arrays if len(arrays) > 1 else arrays[0]
    return part


def _standardized(batch: Any) -> Any:
    """Returns nested arrays, lists as tuples and floats in Keras' type, float32 by default."""
    if isinstance(batch, Mapping):
        return {name: _standardized(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(_standardized(part) for part in batch)
    if isinstance(batch, tf.Tensor):
        return batch
    array = np.asarray(batch)
    if array.dtype == object:  # of texts; pandas has them so
        return array.astype(str) if all(isinstance(text, str) for text in array.flat) else array
    if issubclass(array.dtype.type, np.floating):
        return array.astype(tf.keras.backend.floatx(), copy=False)
    return array


class _Sequence(Data):
    """A Keras Sequence, read by an adapter.

    Each of several workers reads all batches, so that a Sequence draws the same on all of them.
    """

    is_of_python = False  # `generators` are those after the last batch

    def __init__(self, adapter: SequenceAdapter, share: tuple[int, int]) -> None:
        self._adapter = adapter
        self._rank, self._workers = share
        self._spec: Any = None

    def training(self, start: int) -> tf.data.Dataset:
        noted = self._adapter.noted(start * self._workers)
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return self._dataset(self._own(noted)).apply(endless)

    def validation(self) -> tf.data.Dataset:
        known = tf.data.experimental.assert_cardinality(len(self._adapter))
        return self._dataset(self._adapter.noted(is_validation=True)).apply(known)

    def replay(self, batches: int) -> None:
        self._adapter.skip_epochs(batches * self._workers)

    def wait(self) -> None:
        self._adapter.wait()

    def close(self) -> None:
        self._adapter.stop()

    def _own(self, noted: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches of this worker, and the generators after those of a whole step."""
        while step := list(itertools.islice(noted, self._workers)):
            yield step[self._rank][0], step[-1][1]

    def _dataset(self, noted: Iterator[Any]) -> tf.data.Dataset:
        noted = (
            (_standardized(batch if isinstance(batch, (list, tuple)) else (batch,)), generators)
            for batch, generators in noted
        )
        samples = list(itertools.islice(noted, _SAMPLES))
        self._spec = self._spec or _spec([batch for batch, _ in samples])

        def batches() -> Iterator[Any]:
            for batch, self.generators in itertools.chain(samples, noted):
                yield batch

        dataset = tf.data.Dataset.from_generator(batches, output_signature=self._spec)
        # A batch that is read ahead would be lost at a restart, with its random draws.
        return not_ahead(dataset)


def _spec(samples: list[Any]) -> Any:
    """Returns the spec that all samples fit: the batch, and whatever else differs, may vary."""

    def spec_of(*arrays: Any) -> tf.TensorSpec:
        sizes = zip(*(np.shape(array) for array in arrays), strict=True)
        dimensions = [size[0] if len(set(size)) == 1 else None for size in sizes]
        return tf.TensorSpec([None, *dimensions[1:]], tf.as_dtype(np.asarray(arrays[0]).dtype))

    return tf.nest.map_structure(spec_of, *samples)
