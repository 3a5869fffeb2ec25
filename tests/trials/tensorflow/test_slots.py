"""The share of a batch that each of several workers takes."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from generic_trainer.trials import _context
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.tensorflow._graph import _share


def test_a_slot_gets_its_rows_of_a_sparse_tensor():
    words = tf.sparse.from_dense([[1, 0], [2, 3], [0, 4]])
    record = {"words": words, "label": tf.constant([1.0, 2.0, 3.0])}
    shares = [_share(record, tf.constant(True), index, 2) for index in range(2)]
    assert [tf.sparse.to_dense(one["words"]).numpy().tolist() for one, _, _ in shares] == [
        [[1, 0]],
        [[2, 3], [0, 4]],
    ]
    assert [one["label"].numpy().tolist() for one, _, _ in shares] == [[1], [2, 3]]


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
