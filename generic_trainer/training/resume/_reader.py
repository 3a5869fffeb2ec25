"""The position of a `fit` in its data: the state of an iterator, else a number of batches.

Three epochs of four batches, killed after the second batch of epoch 2::

    data.shuffle(100).repeat()                      one iterator for all epochs. Its state has
    with steps_per_epoch=4                          the rows in the buffer and the number of
                                                    seeds drawn: set it, read nothing again.
    data.shuffle(100)                               an iterator for each epoch, whose shuffle
                                                    draws a seed when it begins. How often the
                                                    *dataset* has drawn is in no state: make
                                                    both iterators, read a batch of the first
                                                    (now it has drawn) and two of the second.
    a generator, a strategy's dataset               no state at all: batches are counted;
                                                    `_draws` sets Python's generators.

The second way repeats the history of the dataset, and so is right for any data that give
the same rows when they are read again. The first is faster, and wrong as soon as a state
lacks draws. `move_to` therefore counts them, and takes the second way if any are missing.
"""

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.texts import reason_of
from generic_trainer.errors import TrainingError
from generic_trainer.training._walk import walk
from generic_trainer.training.resume._state import Tensors, tensors_in

_ITERATOR = "iterator"
# The key in the state of an iterator that has the number of seeds drawn by `shuffle` or `random`.
_DRAWS = b"epoch_num_random_samples"

# Operations that call Python code. Shuffles and random numbers have one of two words in theirs.
_OF_PYTHON = {"GeneratorDataset", "PyFunc", "EagerPyFunc", "PyFuncStateless"}
_OF_CHANCE = ("Shuffle", "Random")

_LARGE_BYTES = 1 << 10  # of a constant: seeds and names of files are smaller
_graphs: weakref.WeakKeyDictionary[tf.data.Dataset, Any] = weakref.WeakKeyDictionary()

_logger = logging.getLogger(__name__)


def take_position(iterator: Any, batches: int, consumed: int, *, is_last: bool) -> Tensors:
    """Returns the state of an iterator, if it has one that can be saved and is of use.

    That state holds the seeds of its shuffles and the elements that are read and not yet used. The
    iterators of a distribution strategy, those over Python generators and those with stateful
    functions have none: their batches are counted. So are those of data that are iterated anew in
    the next epoch, whose shuffles then draw new seeds: how often they have drawn is not part of
    the state, unless they have more to read. And so are those of a snapshot: see `has_snapshot`.

    Args:
        iterator: gives a `fit` its batches.
        batches: number of batches that it has given in this epoch.
        consumed: the same of all epochs; more if it serves several.
        is_last: whether no epoch follows.
    """
    is_last_pass = is_last or consumed > batches
    if not (isinstance(iterator, tf.data.Iterator) and (is_last_pass or _is_endless(iterator))):
        return {}
    if has_snapshot(iterator):
        return {}
    # Other policies leave out the state of Python code and of stateful ops: a resumed fit would
    # read other rows.
    fails = tf.data.experimental.ExternalStatePolicy.FAIL
    try:
        state = tf.raw_ops.SerializeIterator(
            resource_handle=internals.TF_ITERATOR_RESOURCE.of(iterator),
            external_state_policy=fails.value,
        )
    except (ValueError, OSError, tf.errors.OpError) as error:  # mostly: it has none
        _logger.info(
            "The position in the data is kept as a number of batches: %s", reason_of(error)
        )
        return {}
    return {_ITERATOR: state}


def move_to(
    iterator: Any, directory: str, batches: int, lacking: int = 0, *, has_state: bool = True
) -> None:
    """Moves an iterator to the position at which a checkpoint was taken.

    Args:
        iterator: over the same dataset.
        directory: of the checkpoint, which has the result of `take_position`.
        batches: that it has to be moved by, if the checkpoint has no state of it.
        lacking: see `skip`.
        has_state: whether a state in the checkpoint is that of such an iterator.

    Raises:
        TrainingError, tf.errors.OpError: the dataset is another one.
    """
    path = tensors_in(directory)
    if has_state and tf.train.load_checkpoint(path).has_tensor(_ITERATOR):
        with tf.device("CPU:0"):
            (state,) = tf.raw_ops.RestoreV2(
                prefix=path, tensor_names=[_ITERATOR], shape_and_slices=[""], dtypes=[tf.variant]
            )
        # Setting the state draws another seed, then restores the number of draws. Batching,
        # prefetching and zipping drop a shuffle that they have read to its end, and with it that
        # number: the passes that follow would get other seeds.
        draws = tf.io.serialize_tensor(state).numpy().count(_DRAWS)
        kinds = [node.op for node in _graph(iterator).node]
        if draws == sum(kind.startswith(("RandomDataset", "Shuffle")) for kind in kinds):
            resource = internals.TF_ITERATOR_RESOURCE.of(iterator)
            tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=state)
            return
    if batches and isinstance(iterator, tf.data.Iterator) and _shuffles_without_seed(iterator):
        _logger.warning(
            "The data are shuffled without a seed, now in another order: in this epoch some rows "
            "come twice and others never. Call tf.random.set_seed before making the data."
        )
    _logger.info("Reading the %d batches before that position again", batches)
    skip(iterator, batches, lacking)


def has_snapshot(iterator: tf.data.Iterator) -> bool:
    """Returns whether data pass through `Dataset.snapshot`, whose files must not be disturbed.

    To take the state of an iterator that writes them leaves files that nobody can read: so does
    `tf.train.Checkpoint(iterator=...)` with TensorFlow alone.
    """
    return any(
        any(op.type.startswith("SnapshotDataset") for op in part.graph.get_operations())
        if isinstance(part, tf.types.experimental.ConcreteFunction)
        else isinstance(part, tf.data.Dataset) and "Snapshot" in type(part).__name__
        for part in _parts_of(iterator)
    )


def _parts_of(iterator: tf.data.Iterator) -> Iterator[Any]:
    """Yields datasets and functions, as objects of Python: a graph has all data in memory, too."""
    return (part for _, part in walk(internals.TF_ITERATOR_DATASET.of(iterator)))


def shuffles_within_a_pass(iterator: Any, is_over: bool) -> bool:
    """Returns whether a replayed pass has drawn several seeds, which passes after it continue.

    A shuffle draws one with the first element, and another whenever its data are repeated, as
    after `repeat(2)`.

    Args:
        iterator: of the pass.
        is_over: whether the fit had ended: then another fit may begin a pass after an endless one.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return False
    if _is_endless(iterator) and not is_over:  # the only pass
        return False
    kinds = " ".join(node.op for node in _graph(iterator).node)
    return "Shuffle" in kinds and "Repeat" in kinds


def caches_a_shuffle(iterator: Any) -> bool:
    """Returns whether a cache in memory keeps the order that a shuffle had in the first pass.

    The next process fills it anew, in another order.

    Args:
        iterator: of one of several passes.
    """
    if not isinstance(iterator, tf.data.Iterator) or _is_endless(iterator):
        return False
    nodes = {node.name: node for node in _graph(iterator).node}
    caches = [node for node in nodes.values() if node.op.startswith("CacheDataset")]
    waiting = [cache for cache in caches if not _has_file(nodes.get(cache.input[1]))]
    before: dict[str, Any] = {}
    while waiting:
        for name in waiting.pop().input:
            node = nodes.get(name.partition(":")[0])
            if node is not None and node.name not in before:
                before[node.name] = node
                waiting.append(node)
    return any(
        node.attr["reshuffle_each_iteration"].b  # of `shuffle`
        or node.attr["rerandomize_each_iteration"].b  # of `random` and `sample_from_datasets`
        for node in before.values()
    )


def _has_file(node: Any) -> bool:
    """Whether a cache is written into a file, by the node that names it; a constant as a rule."""
    return node is None or node.attr["value"].tensor.string_val != [b""]


def is_of_python(data: Any) -> bool:
    """Returns whether Python code makes data: those of a dataset, of an iterator, or of a graph.

    Those of a distribution strategy are not looked into, nor is a graph outside of its functions.
    """
    return not _OF_PYTHON.isdisjoint(_operations(data))


def shuffles(data: Any) -> bool:
    """Returns whether TensorFlow shuffles data, or draws for them; see `is_of_python`."""
    return any(word in kind for kind in _operations(data) for word in _OF_CHANCE)


def _operations(data: Any) -> set[str]:
    if isinstance(data, tf.Graph):
        graph = data.as_graph_def()
        nodes = []
    elif isinstance(data, (tf.data.Iterator, tf.data.Dataset)):
        graph = _graph(data)
        nodes = [*graph.node]
    else:
        return set()
    functions = [node for function in graph.library.function for node in function.node_def]
    return {node.op for node in (*nodes, *functions)}


def handles_of_data(iterator: Any) -> list[tf.Tensor]:
    """Returns the handles of what functions of a dataset use, such as those of variables.

    Those of a distribution strategy are not looked into.
    """
    if not isinstance(iterator, tf.data.Iterator):
        return []
    return [
        handle
        for part in _parts_of(iterator)
        if isinstance(part, tf.types.experimental.ConcreteFunction)
        for handle in part.captured_inputs
    ]


def not_ahead(data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns data that are read when they are asked for, if Python code makes them.

    Else a thread of tf.data draws from Python's generators while they are set or used. If the user
    prefetches, data are read ahead all the same. A graph's data are those of its functions.

    Three of tf.data's own optimisations start such threads: a prefetch at the end; map and batch as
    one op, which makes the next batch while this one is used; and a map of several calls at once.
    """
    if not is_of_python(data if tf.executing_eagerly() else tf.compat.v1.get_default_graph()):
        return data
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_and_batch_fusion = False
    options.experimental_optimization.map_parallelization = False
    return data.with_options(options)


def skip(iterator: Any, batches: int, lacking: int = 0) -> None:
    """Takes batches from an iterator.

    Args:
        iterator: gives a `fit` its batches.
        batches: their number.
        lacking: how many of them it may lack.

    Raises:
        TrainingError: it has fewer.
    """
    for left in range(batches, 0, -1):
        try:
            next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError) as error:  # which would end the epoch
            if left > lacking:
                raise data_differ() from error


def data_differ() -> TrainingError:
    """Returns the error of a checkpoint whose data were longer, or shorter."""
    return TrainingError(
        "The data, or the epochs and steps of fit, are not those of the checkpoint in use: they "
        "end at another batch. Restore them, without BackupAndRestore, which resumes at another "
        "epoch, or delete the checkpoints to start afresh."
    )


def _is_endless(iterator: tf.data.Iterator) -> bool:
    cardinality = internals.TF_ITERATOR_DATASET.of(iterator).cardinality()
    return bool(cardinality == tf.data.INFINITE_CARDINALITY)


def _graph(data: tf.data.Iterator | tf.data.Dataset) -> Any:
    """Returns the `GraphDef` of an iterator's datasets, whose functions are in its library.

    The graph begins before `prefetch_to_device` and `copy_to_device`, which can be in no graph, and
    large constants have no value: TensorFlow copies arrays of a `fit`, which takes seconds for each
    gigabyte, and a replay asks in each epoch.
    """
    is_dataset = isinstance(data, tf.data.Dataset)
    dataset = data if is_dataset else internals.TF_ITERATOR_DATASET.of(data)
    if dataset not in _graphs:
        graph = tf.compat.v1.GraphDef()
        for _, part in walk(dataset):  # the last dataset first
            if isinstance(part, tf.data.Dataset):
                variant = tf.data.experimental.to_variant(part)
                with contextlib.suppress(tf.errors.FailedPreconditionError):
                    graph.ParseFromString(
                        tf.raw_ops.DatasetToGraphV2(
                            input_dataset=variant, external_state_policy=1
                        ).numpy()
                    )
                    break
        for node in graph.node:
            if node.op == "Const" and node.ByteSize() > _LARGE_BYTES:
                del node.attr["value"]
        _graphs[dataset] = graph
    return _graphs[dataset]


def _shuffles_without_seed(iterator: tf.data.Iterator) -> bool:
    """Returns whether a dataset shuffles, or a function of one as `fit` has for arrays.

    TensorFlow takes two seeds of 0 for none.
    """
    graph = _graph(iterator)
    constants = {node.name: node.attr["value"].tensor for node in graph.node if node.op == "Const"}
    seeds = [
        [int(tf.make_ndarray(constants[name])) for name in node.input[2:4]]
        for node in graph.node
        if node.op == "ShuffleDatasetV3"
    ]
    functions = (node for function in graph.library.function for node in function.node_def)
    seeds += [
        [node.attr["seed"].i, node.attr["seed2"].i]
        for node in functions
        if node.op == "RandomShuffle"
    ]
    return [0, 0] in seeds
