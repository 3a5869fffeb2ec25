"""Refusal of trainings and evaluations of estimators that would never end.

Both end after a number of steps. It may be None, such as `fn_args.train_steps` of a run without
steps: then they end with their data, or when a hook stops them. A dataset that repeats forever has
no end.
"""

from typing import Any

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError

_LISTENERS = "saving_listeners"  # of a TrainSpec alone


def refuse_endless(estimator: Any, spec: Any, limit: str) -> None:
    """Raises `ConfigurationError` if the dataset of a spec repeats forever, and nothing ends it.

    Args:
        estimator: to be trained or evaluated.
        spec: a TrainSpec or EvalSpec.
        limit: its field with the number of steps.
    """
    if getattr(spec, limit, True) is not None or spec.hooks or getattr(spec, _LISTENERS, None):
        return
    if _is_endless(estimator, spec.input_fn, "train" if limit == "max_steps" else "eval"):
        raise ConfigurationError(
            f"{type(spec).__name__}(input_fn) returns a dataset that repeats forever, and neither "
            f"{limit} nor a hook ends it. Pass {limit}, such as fn_args.train_steps or eval_steps "
            "(--train-steps, --eval-steps of `generic-trainer run`), or let the dataset end."
        )


def _is_endless(estimator: Any, input_fn: Any, mode: str) -> bool:
    """Whether a dataset repeats forever, and no hook of the model's own could stop."""
    import tensorflow as tf  # not with this package

    # Else the GPUs' memory would be taken here, and not as the estimator's configuration says.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        tf.compat.v1.train.create_global_step()
        data = internals.ESTIMATOR_CALL_INPUT_FN.of(estimator)(input_fn, mode)
        try:
            if session.run(data.cardinality()) != tf.data.INFINITE_CARDINALITY:
                return False
        except (AttributeError, tf.errors.OpError):  # no dataset, or one that needs variables
            return False
        item = tf.compat.v1.data.make_initializable_iterator(data).get_next()
        features, labels = item if isinstance(item, tuple) else (item, None)
        model = internals.ESTIMATOR_CALL_MODEL_FN.of(estimator)
        spec = model(features, labels, mode, estimator.config)
    return not (spec.training_hooks or spec.training_chief_hooks or spec.evaluation_hooks)
