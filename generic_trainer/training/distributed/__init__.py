"""Sums, gradient averages and agreement between workers that train one model together.

For custom training loops; for Keras's `fit`, `training.get_strategy()` does the same::

    from generic_trainer.training import distributed

    for x, y in dataset.shard(distributed.size(), distributed.rank()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x)))
        gradients = distributed.average_gradients(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))

The workers are those of `TF_CONFIG`, each with one device. Without `TF_CONFIG`, or with a single
worker, every function returns its argument unchanged.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.training.distributed._collectives import (
        all_reduce,
        average_gradients,
        broadcast,
        gather,
    )
    from generic_trainer.training.distributed._runtime import agree_to_stop, barrier, rank, size

__all__ = [
    "agree_to_stop",
    "all_reduce",
    "average_gradients",
    "barrier",
    "broadcast",
    "gather",
    "rank",
    "size",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_collectives": "all_reduce average_gradients broadcast gather",
        # Internal names, for the rest of `training`, for trials and for estimators.
        "_agreement": "agree_to_fit",
        "_keras": "forget_strategy keep_metrics_in_worker_0 make_strategy",
        "_runtime": "agree_to_stop barrier eager_mode explained_failures rank runtime size",
        "_graphs": "any_wants averaging_optimizers start_session_alike sum_in_session",
        "_shares": "at_least_a_row is_own number_of_rows options_of share_of share_of_rows "
        "without_length",
        "_strategy": "DataParallelStrategy",
    },
)
