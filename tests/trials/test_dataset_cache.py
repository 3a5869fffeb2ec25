"""Datasets that are computed once."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import _config, _dataset_cache
from generic_trainer.trials._context import TrialContext
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
        return DatasetCache(TrialContext(dataclasses.replace(run, **options)))

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


def test_each_epoch_is_shuffled_and_a_resumed_run_goes_on_in_its_order(cache):
    def batches(seed):
        tf.random.set_seed(7)
        return numbers(cache(seed=seed), shuffle=True).batch(4).repeat()

    straight = [batch.tolist() for batch in batches(0).take(9).as_numpy_iterator()]
    epochs = [[*itertools.chain(*straight[start : start + 3])] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    rest = [batch.tolist() for batch in batches(0).skip(4).take(5).as_numpy_iterator()]
    assert rest == straight[4:]
    assert next(batches(1).as_numpy_iterator()).tolist() != straight[0]


def test_workers_that_both_miss_read_the_same(cache):
    others = []

    def make():
        others.extend(read(numbers(cache(), 6)))  # of a worker that is faster
        return tf.data.Dataset.from_tensor_slices([9, 8, 7])

    assert read(cache().cache_train_dataset("numbers", "v1")(make)()) == others == [*range(6)]
    assert read(numbers(cache(), 2)) == others


def test_many_small_records_are_shuffled_as_a_whole(cache, caplog):
    data = numbers(cache(), 20_000, shuffle=True)
    first = [int(number) for number in data.take(1000).as_numpy_iterator()]
    assert len({number // 2000 for number in first}) == 10
    assert caplog.text == ""


def test_a_window_for_shuffling_is_warned_of(cache, caplog, monkeypatch):
    monkeypatch.setattr(_dataset_cache, "_MOST_BYTES", 1)
    data = numbers(cache(), 10_001, shuffle=True)
    assert sorted(read(data)) == [*range(10_001)]
    assert "a window of 10000 of the 10001" in caplog.text


def test_the_order_can_stay(cache):
    data = numbers(cache(seed=5), shuffle=True, skip_shuffle_at_epoch_end=True)
    order = read(data)
    assert order != list(range(10))
    assert read(data) == order


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


def test_it_works_while_a_graph_is_built(cache):
    with tf.Graph().as_default():
        following = tf.compat.v1.data.make_initializable_iterator(numbers(cache(), 3))
        with tf.compat.v1.Session() as session:
            session.run(following.initializer)
            element = following.get_next()
            assert [session.run(element) for _ in range(3)] == [0, 1, 2]


def test_a_bucket_is_read_as_it_is(cache, monkeypatch):
    monkeypatch.setitem(_config._BUCKETS, "gcs", "ram")  # TensorFlow's file system in memory
    layer = {"type": "gcs", "bucket": "bucket", "bucket_directory_path": "some/folder"}
    assert read(numbers(cache(layer=layer), 4)) == [0, 1, 2, 3]
    assert tf.io.gfile.exists("ram://bucket/some/folder/numbers/v1_train/stored")
    assert read(numbers(cache(layer=layer), 7)) == [0, 1, 2, 3]


def test_the_directories_of_two_versions_do_not_meet(cache):
    assert read(numbers(cache(), 4, version="a/../v1")) == [0, 1, 2, 3]
    assert read(numbers(cache(), 3, version="v1")) == [0, 1, 2]


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
