"""Metrics that Python computes."""

import itertools

import numpy as np
import pytest

from generic_trainer.estimator import tf
from generic_trainer.trials._loop import plain
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator import EstimatorTrialContext, MetricReducer
from tests.trials.estimator.one_weight import OneWeight


class Total(MetricReducer):
    """Sums records and counts them."""

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def accumulate(self, metric):
        self.sum, self.count = self.sum + metric.sum(), self.count + metric.size
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics):
        [(total, count)] = per_slot_metrics  # of one slot
        return total * 100 + count


class Reduced(OneWeight):
    def metrics(self, outputs, labels):
        make = self.context.experimental.make_metric
        named = {"outputs": outputs, "labels": labels}
        return {
            "total": make(labels, Total(), np.float64),
            "all": make(labels, lambda batches: np.concatenate(batches).sum(), np.int64),
            "batches": make(labels, len, np.float32),
            "named": make(named, lambda found: sum(each["labels"].sum() for each in found), float),
            "listed": make([outputs, labels], lambda found: found[0][1].sum(), np.float32),
            "constant": make(7, lambda found: found[0], np.int32),
            "several": make(labels, lambda found: [1.0, 2.0], np.float32),
        }


def test_reducers_see_every_batch(open_trial):
    trial = open_trial(Reduced)
    for _ in range(2):  # a second evaluation starts anew
        found = plain(trial.validate())
        assert found["total"] == 1203  # 2 + 4 + 6 in three records
        assert found["all"] == 12
        assert found["batches"] == 2
        assert found["named"] == 12
        assert found["listed"] == 6  # of the first batch
        assert found["constant"] == 7
        assert found["several"] == [1.0, 2.0]
        assert isinstance(found["all"], int)


@pytest.mark.parametrize("metric", [object(), {"a": object()}, {1: 2.0}, [[1.0], [[2.0]], None]])
def test_what_is_no_metric(metric):
    context = EstimatorTrialContext(
        TrialRun(trial_id=1, config={}, hparams={"global_batch_size": 1}, seed=0)
    )
    with tf.Graph().as_default(), pytest.raises(TypeError):
        context.experimental.make_metric(metric, len, np.float32)


def test_values_are_computed_in_the_order_in_which_they_were_made(open_trial):
    order = []

    class Ordered(OneWeight):
        def metrics(self, outputs, labels):
            def noted(name):
                return lambda values: order.append(name) or 0.0

            makes = itertools.cycle(
                [self.context.make_metric, self.context.experimental.make_metric]
            )
            return {name: next(makes)(labels, noted(name), np.float32) for name in "cabd"}

    open_trial(Ordered).validate()
    assert order == list("cabd")
