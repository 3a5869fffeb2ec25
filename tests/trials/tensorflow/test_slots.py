"""The share of a batch that each of several workers takes."""

import contextlib
import dataclasses

import pytest
import tensorflow as tf

from generic_trainer.trials import _context
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.tensorflow import _trial
from tests.trials.tensorflow.one_weight import OneWeight

tf1 = tf.compat.v1


@pytest.mark.parametrize(
    ("rows", "rank", "share", "mine"),
    [
        (3, 0, 1 / 3, [[1]]),
        (3, 1, 2 / 3, [[2], [3]]),
        (1, 1, 0, [[1]]),  # a step needs a row; this one has no weight
    ],
)
def test_a_slot_trains_on_its_rows_and_validates_on_all(monkeypatch, rows, rank, share, mine):
    alone = contextlib.nullcontext(lambda step: step)
    monkeypatch.setattr(_trial.distributed, "averaging_optimizers", lambda rows: alone)
    monkeypatch.setattr(_trial.distributed, "rank", lambda: rank)
    batch = [[1], [2], [3]][:rows]
    with tf.Graph().as_default(), tf1.Session() as session:
        x, is_training = tf1.placeholder(tf.float32, [None, 1]), tf1.placeholder(tf.bool, [])
        record = {"x": x, "label": x, "words": tf.sparse.from_dense(x)}
        run = TrialRun(1, {}, {}, 0, workers=2)
        record, outputs, _ = _trial.build(OneWeight({}), record, is_training, run)
        shared = [record["x"], tf.sparse.to_dense(record["words"])]
        for training, expected in ((True, [share, mine, mine]), (False, [1, batch, batch])):
            fed = {x: batch, is_training: training}
            found = session.run([outputs[_trial.SHARE], *shared], fed)
            assert [value.tolist() for value in found] == expected


@pytest.mark.parametrize(("is_graph", "slots"), [(True, 2), (False, 8)])
def test_a_graph_has_one_slot_for_each_worker_with_several_gpus(monkeypatch, is_graph, slots):
    # Each worker takes a share by its rank: with 8 slots, 6 of 8 rows would be trained by none.
    @dataclasses.dataclass
    class Strategy:
        num_replicas_in_sync: int = 8

    monkeypatch.setattr(_context.distributed, "size", lambda: 2)
    monkeypatch.setattr(_context, "get_strategy", Strategy)
    run, _ = _context.fit_to_workers(TrialRun(1, {}, {}, 0), is_graph=is_graph)
    assert (run.slots, run.workers) == (slots, 2)
