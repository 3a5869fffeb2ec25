"""Several workers: `python -m tests.training.distributed.worker RUNS`.

RUNS are a JSON list of runs, one after another: [GROUP, FOLDER, ["HOST:PORT", ...]]. Workers are
forked once TensorFlow is imported, which takes longest. Each writes what it ends each case of a
group with as JSON into `FOLDER/RANK.json`.
"""

import contextlib
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from generic_trainer._core.cluster import Task, make_tf_config
from generic_trainer.data import TensorFlowDatasetOptions, make_dataset_factory
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import (
    checked_on_several_workers,
    distributed,
    get_strategy,
    resume_callbacks,
)
from generic_trainer.training.distributed import make_strategy
from generic_trainer.training.resume._schedule import CommonStep
from tests.data.reading import schema_of
from tests.training.distributed import cases
from tests.training.resume.fits import fn_args


def functions() -> dict[str, Any]:
    """Returns what each function of the package gives this worker."""
    distributed.barrier()
    rank, size = distributed.rank(), distributed.size()
    halves = tf.fill([3], tf.cast(rank + 0.5, tf.float16))
    rows = tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank)), tf.range(rank + 1), [9, 2])
    summed = distributed.all_reduce({"a": [1, 2.5], "b": (halves, None, True), "c": rows})

    @tf.function
    def in_graph(value: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            value = distributed.all_reduce(value)
        return value

    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable**2) * float(rank or "nan")
    tape = distributed.average_gradients(tape, rows=rank)  # worker 0 has none
    sparse = tf.IndexedSlices(tf.fill([1], float(rank or "nan")), tf.constant([0]))
    return {
        "rank and size": [rank, size],
        "sum": _plain(summed["a"] + list(summed["b"][:1]) + [summed["b"][2]]),
        "none": summed["b"][1] is None,
        "rows": [_plain(summed["c"].values), _plain(summed["c"].indices)],
        "in a graph": float(in_graph(tf.constant(1.0))),
        "broadcast": _plain(distributed.broadcast([rank, "text"[rank : rank + 0] or 7 * rank], 1)),
        "gather": distributed.gather({"rank": rank, "text": "x" * rank}),
        "arrays": _plain(distributed.gather((tf.fill([2], rank), np.float32(rank)))),
        "no data": _error_of(lambda: distributed.gather([os.getcwd])),
        "stop": [distributed.agree_to_stop(rank == 1), distributed.agree_to_stop(False)],
        "gradients": _plain(tape.gradient(loss, variable)),
        "sparse": _plain(distributed.average_gradients([sparse], rows=rank)[0].values),
        "large": float(tf.reduce_sum(distributed.all_reduce(tf.ones([5_000_000])))),
    }


def loop() -> dict[str, Any]:
    """Returns what a loop of one's own gets from the strategy."""
    strategy = make_strategy()
    rows = tf.data.Dataset.from_tensor_slices((tf.range(10, dtype=tf.int64),))
    with strategy.scope():
        drawn = tf.Variable(tf.random.uniform([2], seed=None))
        total = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step(row: tf.Tensor) -> tf.Tensor:
        def by_row(row: tf.Tensor) -> tf.Tensor:
            if row > 2:  # AutoGraph converts it
                row = 10 * row
            return row

        return strategy.reduce("SUM", strategy.run(by_row, args=(row,)), axis=None)

    seen = []
    batches = strategy.experimental_distribute_dataset(rows.batch(5))
    for (batch,) in batches:
        strategy.run(lambda batch: total.assign_add(tf.reduce_sum(batch)), args=(batch,))
        seen += [int(x) for local in strategy.experimental_local_results(batch) for x in local]
    return {
        "seen": seen,
        "ordered": batches.options().deterministic,
        "total": int(total),
        "drawn": _plain(drawn),
        "reduced": float(strategy.reduce("MEAN", tf.constant(float(distributed.rank())), None)),
        "gathered": _plain(strategy.gather(tf.constant([distributed.rank()]), axis=0)),
        "in a function": [int(step(tf.constant(1))), int(step(tf.constant(3)))],
        "replicas": strategy.num_replicas_in_sync,
    }


def steps_in_common() -> list[int]:
    """Returns the steps that are due: worker 1 wants one after the third. Each is a collective."""
    common, due = CommonStep(make_strategy()), []
    for step in range(1, 7):
        distributed.all_reduce(1.0)
        if common.is_due(step, is_wanted=distributed.rank() == 1 and step == 3):
            due.append(step)
    common.close()
    return due


def regularized() -> Any:
    with make_strategy().scope():
        return cases.MANY["regularized"].model()


def predictions() -> Any:
    """Returns what a model predicts in a strategy: all of it, in each worker."""
    return _plain(regularized().predict(cases.X, verbose=0))


def list_of_callbacks() -> Any:
    """Returns the loss of a fit with Keras's own list of callbacks, which is left as it was."""
    model = regularized()
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model)
    model.fit(cases.X, cases.Y, verbose=0, callbacks=callbacks)
    return [len(callbacks.callbacks), *model.history.history["loss"]]


def own_rows() -> Any:
    """Returns the steps and weights of fits on one row of its own at a time, and on all rows."""
    rank, size = distributed.rank(), distributed.size()
    rows = tf.data.Dataset.from_tensor_slices((cases.X, cases.Y)).take(8 // size * size)
    results = []
    for data in (own(rows.shard(size, rank).batch(1)), rows.batch(size)):
        with make_strategy().scope():
            model = cases.Case(cases.dense, lambda: keras.optimizers.SGD(0.02, 0.9)).model()
        model.fit(data, epochs=2, verbose=0)
        results.append([int(model.optimizer.iterations), cases.flat(model).tolist()])
    return results


def own(data: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    off = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = off
    return data.with_options(options)


def evaluated_sums() -> Any:
    """Returns the loss of a validation, and of evaluations of the same data, shared and own."""
    with make_strategy().scope():
        model = cases.MANY["sum"].model()
        model.compile(keras.optimizers.SGD(0.0), keras.losses.MeanSquaredError(reduction="sum"))
    data = tf.data.Dataset.from_tensor_slices((cases.X, cases.Y)).take(36).batch(12)
    history = model.fit(data, validation_data=own(data), verbose=0).history
    evaluations = [
        model.evaluate(each, verbose=0, return_dict=True) for each in (own(data), data, own(data))
    ]
    return [*history["val_loss"], *(each["loss"] for each in evaluations)]


def loop_in_a_callback() -> Any:
    """Returns the sum of each worker's rows of a dataset, as a loop in a callback sees them."""
    model, strategy, sums = regularized(), make_strategy(), []

    def add(epoch: int, logs: Any) -> None:
        rows = tf.data.Dataset.from_tensor_slices((tf.range(5.0), tf.range(5)))
        for x, y in strategy.experimental_distribute_dataset(rows.batch(5)):
            sums.append([float(tf.reduce_sum(x)), int(tf.reduce_sum(y))])

    callback = keras.callbacks.LambdaCallback(on_epoch_end=add)
    model.fit(cases.X, cases.Y, verbose=0, validation_data=(cases.X, cases.Y), callbacks=[callback])
    return sums


def compiled_twice() -> Any:
    """Returns the weights of a model with a step of its own that is compiled in mid-training."""
    case = cases.Case(cases.normalized(), kind=cases.OwnMean)
    with make_strategy().scope():
        model = case.model()
    for _ in range(2):
        model.fit(case.dataset(), verbose=0)
        model.compile(model.optimizer, "mse")
    return cases.flat(model).tolist()


def different_weights() -> Any:
    def shrink(batch: int, logs: Any) -> None:
        if distributed.rank():
            model.optimizer.learning_rate = 0.001

    model = regularized()
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=shrink)
    model.fit(cases.X, cases.Y, verbose=0, callbacks=[callback])


def different_vocabularies() -> Any:
    words = ["a", "b"] if distributed.rank() else ["b", "a"]
    with make_strategy().scope():
        lookup = keras.layers.StringLookup(vocabulary=words, output_mode="multi_hot")
        word = keras.Input((1,), dtype="string")
        model = keras.Model(word, keras.layers.Dense(1)(lookup(word)))
        model.compile("sgd", "mse")
    model.fit(tf.constant([["a"], ["b"]]), tf.ones([2, 1]), verbose=0)


def different_models() -> Any:
    with make_strategy().scope():
        model = keras.Sequential([keras.layers.Dense(4 + distributed.rank())])
        model.compile("sgd", "mse")
    model.fit(cases.X, cases.Y, verbose=0)


def different_lengths() -> Any:
    dataset = tf.data.Dataset.from_tensor_slices((cases.X, cases.Y)).batch(4)
    dataset = dataset.take(3 * (1 + distributed.rank())).filter(lambda x, y: True)
    regularized().fit(dataset, verbose=0)


def _plain(value: Any) -> Any:
    return tf.nest.map_structure(lambda each: np.asarray(each).tolist(), value)


def _error_of(function: Callable[[], Any]) -> str:
    try:
        function()
        text = "(none)"
    except ConfigurationError as error:
        text = str(error)
    gc.collect()  # what the error refers to
    return text


def resumed(kind: str, file: str, is_killed: bool) -> None:
    """Trains on shuffled data, without a seed of TensorFlow, and may end in the second epoch."""
    strategy, folder = get_strategy(), os.path.dirname(file)
    feature = 'feature { name: "%s" type: FLOAT presence { min_fraction: 1 } shape { %s } }'
    schema = schema_of(feature % ("x", "dim { size: 2 }") + feature % ("y", ""))
    is_endless = kind == "endless"
    asked = TensorFlowDatasetOptions(
        batch_size=8, num_epochs=None if is_endless else 1, label_key="y"
    )
    data = make_dataset_factory(seed=1)(f"{folder}/data", asked, schema)
    with strategy.scope():
        initial = keras.initializers.GlorotUniform(seed=1)
        model = keras.Sequential(
            [keras.Input([2], name="x"), keras.layers.Dense(1, kernel_initializer=initial)]
        )
        model.compile("adam", "mse")
    steps = []

    def note(batch: int, logs: Any) -> None:
        steps.append(batch)
        if is_killed and len(steps) == 13:  # the other worker may get an error before its 13th
            os._exit(0)

    resuming = resume_callbacks(fn_args(folder), every_steps=3)
    write(file, {})
    with contextlib.suppress(Exception) if is_killed else contextlib.nullcontext():
        model.fit(
            data.map(lambda features, label: (features["x"], label)),
            epochs=3,
            steps_per_epoch=8 if is_endless else None,
            verbose=0,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note), *resuming],
        )
        weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
        results = {"weights": weights.tolist(), "resumed": len(steps) < 24}
        write(file, {**results, **model.history.history})


def train(group: str, file: str) -> None:
    kind, _, end = group.partition(" ")
    if end:
        resumed(kind, file, end == "killed")
        return
    if group == "keras_2":
        write(file, cases.fit_keras_2(tf.distribute.MultiWorkerMirroredStrategy()))
        return
    results: dict[str, Any] = {}
    evaluate = keras.Model.evaluate
    with checked_on_several_workers():
        results["functions"] = functions()
        make_strategy()
        results["seeds"] = list(tf.compat.v1.random.get_seed(7))
        for name, case in cases.GROUPS[group].items():
            with make_strategy().scope():
                weights, history = case.fit()
            results[name] = {"weights": weights.tolist(), "history": history}
        for function in (
            loop,
            steps_in_common,
            predictions,
            list_of_callbacks,
            own_rows,
            evaluated_sums,
            loop_in_a_callback,
            compiled_twice,
        ):
            results[function.__name__] = function()
    results["restored"] = keras.Model.evaluate is evaluate
    with checked_on_several_workers():  # as another `run_fn` in the same processes
        # The last breaks the connections.
        for function in (
            different_vocabularies,
            different_models,
            different_weights,
            different_lengths,
        ):
            results[function.__name__] = _error_of(function)
    write(file, results)


def write(file: str, results: dict[str, Any]) -> None:
    with open(file, "w", encoding="utf-8") as opened:
        json.dump(results, opened, default=float)


def run(group: str, folder: str, addresses: list[str]) -> bool:
    """Returns whether all workers have ended well."""
    tasks = {Task("worker", index): address for index, address in enumerate(addresses)}
    children = []
    for task in tasks:
        child = os.fork()
        if child:
            children.append(child)
            continue
        status = 1
        try:
            os.environ["TF_CONFIG"] = make_tf_config(task, tasks)
            train(group, f"{folder}/{task.index}.json")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)  # without the farewells of TensorFlow, which wait for the others
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


def main(runs: str) -> None:
    sys.exit(not all(run(*each) for each in json.loads(runs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
