"""One `Estimator.train` in portions, its hooks, and the summaries that it reports.

`Estimator.train` runs from the first batch to the last and calls hooks on the way. Between two
workloads a trial validates and saves with the session that it has open: a hook has to wait there.

A summary, such as a learning rate that is computed from the step counter, is read in the same
`Session.run` that changes the counter, and nothing orders the two. Here the summary comes first.
"""

import contextvars
import logging
import os
import queue
import re
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer.errors import ModuleFileError
from generic_trainer.training.resume import stateful_draws_of_graph

# Operations whose first inputs are a tag and a value.
_SUMMARIES = ("ScalarSummary", "TensorSummaryV2")
_LOSS = "loss"
_RENAMED_LOSS = "loss_1"
# What optimizers, counters and moving averages do to variables; initialisers and savers assign.
_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply|(Resource)?Scatter|Assign(Add|Sub)")

_logger = logging.getLogger(__name__)


class StopHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Takes a hook's `run_context.request_stop()` for a wish to stop after this workload.

    It comes after the user's hooks. A session that really stopped could not be saved any more.
    """

    def __init__(self, on_stop: Callable[[], None]) -> None:
        """Takes the function to call when a hook wants to stop."""
        self._on_stop = on_stop

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Notes the wish and takes it back."""
        if run_context.stop_requested:
            internals.TF_SESSION_STOP_REQUESTED.set(run_context, False)
            self._on_stop()


class Training(StopHook):
    """Trains an estimator some batches at a time, in one session from first to last.

    It is a hook of that session, which waits each time that so many batches are done. The session
    is in a thread; of it and its caller one runs at a time.

    Attributes:
        graph: of the session, once it has started.
    """

    graph: tf.Graph

    def __init__(self, train: Callable[[Any], Any], *, on_stop: Callable[[], None]) -> None:
        """Prepares; nothing is built before it is needed.

        Args:
            train: trains the estimator without end, with a hook that comes after the user's.
            on_stop: is called when a hook wants to stop; one that the model function added ends the
                session, before the batches are done.
        """
        super().__init__(on_stop)
        # A thread starts with no context variables: get_experiment_config() would know nothing.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run, train), daemon=True)
        # The numbers of batches to train, 0 to close; and what the caller shall raise after each.
        self._orders: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._session: Any = None
        self._results: list[dict[str, Any]] = []  # summaries, by batch of this portion
        self._batches_left = 0
        self._in_batch = self._is_over = False

    @property
    def started(self) -> bool:
        """Whether the session is or was open."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Opens the session, its variables initialised or restored; once."""
        if not self.started:
            self._thread.start()
            self._raise_reported()

    def run(self, batches: int) -> list[dict[str, Any]]:
        """Trains on the next batches; returns the summaries' values in each of them.

        Raises:
            ModuleFileError: the training data ended.
        """
        self.start()
        if self._is_over:
            raise RuntimeError("training is over and cannot go on")
        self._results = []
        self._orders.put(batches)
        self._raise_reported()
        return self._results

    def save(self, directory: str) -> None:
        """Writes the state of the session, with its graph, into the estimator's directory."""
        self.start()
        path = os.path.join(directory, "model.ckpt")
        with self.graph.as_default():
            step = tf.compat.v1.train.global_step(self._session, self._step)
            saved = self._saver.save(self._session, path, global_step=step)
        # A saver of the user's may have written where the directory is now; it will be elsewhere.
        tf.compat.v1.train.update_checkpoint_state(directory, os.path.basename(saved))

    def close(self) -> None:
        """Closes the session."""
        self._orders.put(0)
        if self.started:
            self._thread.join()

    def _run(self, train: Callable[[Any], Any]) -> None:
        error: BaseException | None = None
        try:
            train(self)
        except BaseException as raised:
            error = raised
        self._is_over = True
        self._reports.put(error)

    def _raise_reported(self) -> None:
        """Waits until the session waits or is over."""
        error = self._reports.get()
        if error is not None:
            raise error

    def _wait(self, error: BaseException | None = None) -> None:
        """Called in the session: waits for the next order."""
        self._reports.put(error)
        self._batches_left = self._orders.get()

    def begin(self) -> None:
        """Looks for the summaries, while the graph may still change."""
        self.graph = tf.compat.v1.get_default_graph()
        summaries = _summarised(self.graph)
        _run_before_updates(self.graph, [tensor.op for tensor in summaries.values()])
        self._fetched = tf.compat.v1.train.SessionRunArgs(summaries)
        self._step = tf.compat.v1.train.get_global_step(self.graph)
        if places := stateful_draws_of_graph(self.graph):
            _logger.warning(
                "If this trial is resumed, it draws other random numbers than it would have in %s, "
                "by stateful ops, whose state cannot be saved. Draw with a tf.random.Generator, or "
                "with tf.random.stateless_uniform by the global step.",
                ", ".join(places),
            )
        savers = self.graph.get_collection(tf.compat.v1.GraphKeys.SAVERS)
        self._saver = savers[0] if savers else tf.compat.v1.train.Saver(save_relative_paths=True)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Waits for the first order; a session that is made anew after a failure just goes on."""
        is_first = self._session is None
        self._session = session
        if is_first:
            self._wait()

    def before_run(self, run_context: Any) -> Any:
        """Asks for the metrics of a batch."""
        self._in_batch = True
        return self._fetched

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Counts batches; waits when they are done."""
        super().after_run(run_context, run_values)
        self._in_batch = False
        self._results.append(run_values.results)
        self._batches_left -= 1
        if self._batches_left == 0:
            self._wait()
        if self._batches_left <= 0:  # it is closed, maybe before its first batch
            run_context.request_stop()

    def end(self, session: Any) -> None:
        """Keeps the session open until it is saved, if it ends by itself."""
        if self._batches_left <= 0:  # it is closed
            return
        if self._in_batch:
            count = len(self._results)
            error = ModuleFileError(
                f"The training data ended within {count + self._batches_left} batches, of which it "
                f"had {count}. Return a tf.data.Dataset with at least one batch from the "
                "TrainSpec's input_fn, which is repeated; other data has to go on for ever."
            )
            self._wait(error)
        else:
            self._on_stop()
            self._wait()


def _summarised(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns tag → tensor for every scalar and tensor summary of a graph that is a number.

    An estimator adds a summary of its loss, which is called loss_1 where the name was taken; if
    no summary has the name then, it gets it back.
    """
    values = {}
    for summary in graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
        if summary.op.type not in _SUMMARIES:
            continue
        tag = tf.get_static_value(summary.op.inputs[0])
        value = summary.op.inputs[1]
        dtype = value.dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        if tag is not None and value.graph is graph and is_number:
            values[tag.item().decode()] = value
    if _LOSS not in values and _RENAMED_LOSS in values:
        values[_LOSS] = values.pop(_RENAMED_LOSS)
    return values


def _run_before_updates(graph: tf.Graph, operations: list[tf.Operation]) -> None:
    """Runs operations before variables change, so that equal seeds give equal summaries.

    Updates that the operations need themselves, such as those of a streaming metric, come first as
    they did. So may those inside of conditions and loops of TensorFlow 1.
    """
    needed: set[tf.Operation] = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    for update in graph.get_operations():
        if (
            _UPDATE.match(update.type)
            and update not in needed
            and internals.TF_CONTROL_FLOW_CONTEXT.of(update)() is None
        ):
            internals.TF_ADD_CONTROL_INPUTS.of(update)(operations)
