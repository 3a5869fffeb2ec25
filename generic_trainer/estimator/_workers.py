"""Estimators on several workers, which train the same model together.

Each builds the whole graph and runs it in its own session, on its share of the data. The code that
`tf.estimator` has for clusters is about parameter servers; methods of its classes look first
whether there is something else to do:

0. A `RunConfig` has the true type of task of this process, and whether it is the chief. It
   counts one replica, of which this is number 0: input that is cut by these numbers stays whole,
   as it has to be for 1.
1. `train` gives the session of each worker the state of worker 0. Each trains on its rows of each
   batch, or on all of a Dataset that is marked as sharded (`AutoShardPolicy.OFF`); gradients are
   averaged by rows. All stop after the same step.
2. Only worker 0, the chief, writes into `model_dir`; the others restore from there.
3. `train_and_evaluate` evaluates and exports in the chief, for which the others wait, and returns
   the result in all of them.
4. `evaluate` and `predict` are those of one process, in each that calls them; within `as_slot`,
   which trials are run in, all workers evaluate together.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief, is_one_of_several, this_task
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.estimator._best_export import remember_best
from generic_trainer.estimator._endless import noting_endless, raising_endless, refuse_endless
from generic_trainer.training import distributed, keras_2_unconverted

_TRAIN, _EVAL = "train", "eval"  # tf.estimator.ModeKeys
_Datasets = (tf.data.Dataset, tf.compat.v1.data.Dataset)

# Modes whose data the workers share: both of them in a slot of a trial.
_shared: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("shared", default=())
# The steps of an evaluation; None is one pass over the data.
_eval_steps: contextvars.ContextVar[int | None] = contextvars.ContextVar("eval_steps", default=None)
# The configuration for the user's functions, if the session has another one.
_users_config: contextvars.ContextVar[Any] = contextvars.ContextVar("users_config", default=None)


def trains_with_others() -> bool:
    """Returns whether this process is one of several workers that train the same model."""
    return is_one_of_several() and this_task().type != "evaluator"


@contextlib.contextmanager
def as_slot() -> Iterator[None]:
    """Makes all workers evaluate together, too; the trial decides when to stop."""
    with _set(_shared, (_TRAIN, _EVAL)):
        yield


def extend(module: Any, user_context: Callable[[], Any]) -> None:
    """Makes the functions of a module of `tensorflow_estimator` work on several workers.

    What would never end is refused, and a BestExporter knows of lost attempts. Those that call the
    user's functions do so in `user_context`, and keep AutoGraph away from the code of Keras 2.
    """
    functions: dict[str, Callable[..., Any]]
    refusing = {
        internals.ESTIMATOR_CALL_INPUT_FN.name: noting_endless,
        internals.ESTIMATOR_CALL_MODEL_FN.name: raising_endless,
    }
    match module.__name__.rpartition(".")[2]:
        case "training":
            original = module.train_and_evaluate
            both = functools.partial(_train_and_evaluate, original)
            module.train_and_evaluate = functools.wraps(original)(both)
            return
        case "exporter":
            remember_best(module.BestExporter)
            return
        case "run_config":
            owner = module.RunConfig
            functions = {internals.ESTIMATOR_INIT_CLUSTER.name: _init_cluster}
        case _:
            owner = module.Estimator  # from which the second API's derives
            functions = {
                "train": _train,
                "evaluate": _evaluate,
                internals.ESTIMATOR_CALL_INPUT_FN.name: _call_input_fn,
                internals.ESTIMATOR_CALL_MODEL_FN.name: _call_model_fn,
                internals.ESTIMATOR_EVALUATE_RUN.name: _evaluate_run,
            }
    for name, around in functions.items():
        original = refusing.get(name, lambda method: method)(getattr(owner, name))
        method = _around(original, around)
        if name in refusing:
            method = user_context()(keras_2_unconverted()(method))
        setattr(owner, name, method)


def _around(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if not trains_with_others():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    return method


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _init_cluster(original: Any, config: Any, tf_config: Any) -> None:
    original(config, {})  # its session knows of no other
    internals.ESTIMATOR_IS_CHIEF.set(config, is_chief())
    internals.ESTIMATOR_TASK_TYPE.set(config, this_task().type)


def _train_and_evaluate(original: Any, estimator: Any, train_spec: Any, eval_spec: Any) -> Any:
    with refuse_endless(train_spec, eval_spec):
        result = original(estimator, train_spec, eval_spec)
    return distributed.gather(result)[0] if trains_with_others() else result


def _train(
    original: Any,
    estimator: Any,
    input_fn: Any,
    hooks: Any = None,
    steps: int | None = None,
    max_steps: int | None = None,
    saving_listeners: Any = None,
) -> Any:
    if max_steps is not None and distributed.gather(_newest_step(estimator))[0] >= max_steps:
        return estimator
    config = estimator.config
    if distributed.rank() > 0:
        saving_listeners = None
        changes = {"save_checkpoints_steps": None, "save_checkpoints_secs": None}
        changed = config.replace(save_summary_steps=0, log_step_count_steps=None, **changes)
        internals.ESTIMATOR_IS_CHIEF.set(changed, True)  # in its session
        internals.ESTIMATOR_CONFIG.set(estimator, changed)
    shared = _shared.get() or (_TRAIN,)
    try:
        hooks = [_StartAlike(), *(hooks or ())]
        with _set(_shared, shared), _set(_users_config, config), distributed.explained_failures():
            original(estimator, input_fn, hooks, steps, max_steps, saving_listeners)
    finally:
        internals.ESTIMATOR_CONFIG.set(estimator, config)
    if _EVAL not in shared:
        distributed.barrier("at the end of Estimator.train")  # its checkpoint is complete
    return estimator


def _newest_step(estimator: Any) -> int:
    newest = tf.train.latest_checkpoint(estimator.model_dir)
    return int(tf.train.load_variable(newest, "global_step")) if newest else 0


def _call_input_fn(
    original: Any, estimator: Any, input_fn: Any, mode: str, *args: Any, **kwargs: Any
) -> Any:
    if mode not in _shared.get():
        return original(estimator, input_fn, mode, *args, **kwargs)
    session_config = estimator.config
    users = _users_config.get()
    try:
        internals.ESTIMATOR_CONFIG.set(estimator, users or session_config)
        data = original(estimator, input_fn, mode, *args, **kwargs)
    finally:
        internals.ESTIMATOR_CONFIG.set(estimator, session_config)
    share = distributed.rank(), distributed.size()
    if not isinstance(data, _Datasets):
        return distributed.share_of_rows(data, *share)
    if distributed.is_own(data):
        return data
    if mode != _EVAL:
        return distributed.share_of(data, *share)
    steps = _eval_steps.get()
    data = data if steps is None else data.take(steps)  # of the whole data, before any is left out
    return distributed.share_of(data, *share).filter(_has_a_row)  # the mean over no row is NaN


@tf.autograph.experimental.do_not_convert
def _has_a_row(*batch: Any) -> Any:
    return distributed.number_of_rows(batch) > 0


def _call_model_fn(
    original: Any, estimator: Any, features: Any, labels: Any, mode: str, config: Any
) -> Any:
    if mode != _TRAIN or _TRAIN not in _shared.get():
        return original(estimator, features, labels, mode, config)
    rows = distributed.number_of_rows((features, labels))
    features, labels = distributed.at_least_a_row((features, labels), rows)
    with distributed.averaging_optimizers(rows) as completed:
        users = _users_config.get() or config
        spec = original(estimator, features, labels, mode, users)
        spec = spec._replace(train_op=completed(spec.train_op))
    if _EVAL not in _shared.get():  # after all other hooks
        spec = spec._replace(training_hooks=(*spec.training_hooks, _StopTogether()))
    return spec if distributed.rank() == 0 else spec._replace(training_chief_hooks=())


def _evaluate(
    original: Any, estimator: Any, input_fn: Any, steps: int | None = None, *args: Any, **named: Any
) -> Any:
    with _set(_eval_steps, steps):
        return original(estimator, input_fn, steps, *args, **named)


def _evaluate_run(
    original: Any, estimator: Any, *, all_hooks: Any, output_dir: str, **options: Any
) -> Any:
    if _EVAL in _shared.get():
        all_hooks = [_SumMetrics(), *(all_hooks or ())]
    with contextlib.ExitStack() as stack:
        if distributed.rank() > 0:
            output_dir = stack.enter_context(ScratchFolder("evaluation-"))
        return original(estimator, all_hooks=all_hooks, output_dir=output_dir, **options)


class _StartAlike(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives the session of each worker the state of worker 0."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        distributed.start_session_alike(session)


class _StopTogether(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Stops all workers after the step after which one of them wants to stop."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if distributed.any_wants(run_context.stop_requested):
            run_context.request_stop()


class _SumMetrics(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Sums the variables of the metrics over all workers, before they are read."""

    def end(self, session: Any) -> None:
        metrics = session.graph.get_collection(tf.compat.v1.GraphKeys.METRIC_VARIABLES)
        distributed.sum_in_session(session, metrics)
