"""Datasets that are computed once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import _config
from generic_trainer.trials._context import BatchSizes
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.errors import CheckFailedError


@pytest.fixture
def cache(tmp_path):
    def make(seed=0, batches=0, slots=1, size=4, layer=None, **options):
        layer = layer or {"type": "shared_fs", "host_storage_path": str(tmp_path)}
        run = TrialRun(
            trial_id=1,
            config={"data_layer": layer},
            hparams={"global_batch_size": size},
            seed=seed,
            slots=slots,
            batches_trained=batches,
        )
        return DatasetCache(run, BatchSizes.of(run.hparams, slots), **options)

    return make


def numbers(cache, count=10, version="v1", **options):
    @cache.cache_train_dataset("numbers", version, **options)
    def make():
        return tf.data.Dataset.range(count)

    return make()


def read(dataset):
    return [int(number) for number in dataset.as_numpy_iterator()]


def test_the_function_is_called_on_the_first_miss_only(cache):
    assert read(numbers(cache(), 10)) == list(range(10))
    assert read(numbers(cache(), 3)) == list(range(10))
    assert read(numbers(cache(), 3, version="v2")) == list(range(3))


def test_training_and_validation_have_different_keys(cache):
    found = cache()
    numbers(found, 10)

    @found.cache_validation_dataset("numbers", "v1")
    def make(count):
        return tf.data.Dataset.range(count)

    assert read(make(2)) == [0, 1]


def test_epochs_are_shuffled_by_seed_and_number(cache):
    first = numbers(cache(seed=0), shuffle=True)
    epochs = [read(first) for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    second = numbers(cache(seed=1), shuffle=True)
    assert [read(second), read(second)] == epochs[1:]


def test_the_order_can_stay(cache):
    data = numbers(cache(seed=5), shuffle=True, skip_shuffle_at_epoch_end=True)
    order = read(data)
    assert order != list(range(10))
    assert read(data) == order


def test_the_global_seed_changes_nothing(cache):
    tf.random.set_seed(1)
    first = read(numbers(cache(seed=3), shuffle=True))
    tf.random.set_seed(2)
    assert read(numbers(cache(seed=3), shuffle=True)) == first


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("batches", range(9))
def test_partial_batches_are_counted(cache, batches, drop_remainder):
    def batched(found):
        return numbers(found, shuffle=True).batch(4, drop_remainder=drop_remainder)

    straight = list(batched(cache()).repeat().take(10).as_numpy_iterator())
    found = cache(batches=batches)
    resumed = batched(found)
    found.resume(resumed)
    rest = list(resumed.repeat().take(10 - batches).as_numpy_iterator())
    assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in straight[batches:]]


def test_slots_share_equally(cache):
    assert read(numbers(cache(slots=4))) == list(range(8))


def test_any_structure_is_kept(cache):
    def make():
        records = {"name": ["a", "bc", ""], "x": np.eye(3), "n": [1, 2, 3]}
        data = tf.data.Dataset.from_tensor_slices(records)
        return data.map(
            lambda r: (r["x"], {"s": tf.sparse.from_dense(r["x"]), "n": (r["n"], r["name"])})
        )

    cached = cache().cache_train_dataset("nested", "1")(make)()
    assert cached.element_spec == make().element_spec
    for found, expected in zip(cached, make(), strict=True):
        tf.nest.map_structure(
            lambda one, other: np.testing.assert_array_equal(one.numpy(), other.numpy()),
            tf.nest.flatten(found, expand_composites=True),
            tf.nest.flatten(expected, expand_composites=True),
        )


def test_records_may_differ_in_shape(cache):
    def make():
        return tf.data.Dataset.range(3).map(lambda n: tf.range(n))

    cached = cache().cache_train_dataset("ragged", "1")(make)()
    assert [record.tolist() for record in cached.as_numpy_iterator()] == [[], [0], [0, 1]]


def test_no_records(cache):
    assert read(numbers(cache(), 0, shuffle=True)) == []


def test_it_works_while_a_graph_is_built(cache):
    with tf.Graph().as_default():
        following = tf.compat.v1.data.make_initializable_iterator(numbers(cache(), 3))
        with tf.compat.v1.Session() as session:
            session.run(following.initializer)
            element = following.get_next()
            assert [session.run(element) for _ in range(3)] == [0, 1, 2]


def test_a_bucket_is_read_through_a_local_copy(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setitem(_config._BUCKETS, "gcs", "ram")  # TensorFlow's file system in memory
    layer = {"type": "gcs", "bucket": "bucket", "bucket_directory_path": "some/folder"}
    assert read(numbers(cache(layer=layer), 4)) == [0, 1, 2, 3]
    assert tf.io.gfile.exists("ram://bucket/some/folder/numbers/v1_train/offsets.npy")
    assert read(numbers(cache(layer=layer), 7)) == [0, 1, 2, 3]


def test_the_local_copies_of_two_versions_do_not_meet(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setitem(_config._BUCKETS, "gcs", "ram")
    layer = {"type": "gcs", "bucket": "versions"}
    assert read(numbers(cache(layer=layer), 4, version="a/../v1")) == [0, 1, 2, 3]
    assert read(numbers(cache(layer=layer), 3, version="v1")) == [0, 1, 2]


def test_twice_in_a_trial(cache):
    found = cache()
    numbers(found)
    with pytest.raises(CheckFailedError, match="once in a trial"):
        numbers(found)


def test_a_function_that_returns_no_dataset(cache):
    with pytest.raises(ConfigurationError, match=r"must return a tf\.data\.Dataset, but got list"):
        cache().cache_train_dataset("x", "1")(lambda: [1, 2])()


@pytest.mark.parametrize("layer", [{"type": "hdfs"}, {"type": "s3"}])
def test_an_unknown_place(cache, layer):
    with pytest.raises(ConfigurationError, match="data_layer must be"):
        numbers(cache(layer=layer))


def test_outside_of_an_experiment_the_place_must_be_named():
    run = TrialRun(trial_id=1, config={}, hparams={}, seed=0)
    with pytest.raises(KeyError, match="has no data_layer"):
        numbers(DatasetCache(run, BatchSizes(4, 4), managed_training=False))
