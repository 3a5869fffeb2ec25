"""Several workers on shares of each batch end with the weights and metrics of one on whole ones."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.keras import keras_3_package
from tests.house import run_python
from tests.processes import free_ports
from tests.training.distributed import cases

pytestmark = pytest.mark.skipif(keras_3_package() is None, reason="needs Keras 3")

Results = list[dict[str, Any]]


def run_in_turn(*runs: tuple[str, int, Path]) -> None:
    """Runs groups with so many workers, which write into a folder, in children of one process."""
    environment = {"TF_USE_LEGACY_KERAS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": ""}
    environment["XLA_FLAGS"] = f"--xla_dump_to={runs[0][2]}/xla --xla_dump_hlo_as_text"
    words = [
        (group, str(folder), [f"127.0.0.1:{port}" for port in free_ports(size)])
        for group, size, folder in runs
    ]
    run_python("-m", "tests.training.distributed.worker", json.dumps(words), **environment)


def results_in(folder: Path) -> Results:
    """Returns what each worker has ended with, by rank."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


def run_workers(group: str, size: int, folder: Path) -> Results:
    """Returns what each of so many workers ends with."""
    run_in_turn((group, size, folder))
    return results_in(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_workers("few", 2, tmp_path_factory.mktemp("two"))


@functools.cache
def alone(name: str) -> Any:
    return cases.MANY[name].fit()


def assert_as_alone(name: str, results: Results) -> None:
    weights, history = alone(name)
    rtol = cases.MANY[name].accuracy
    for result in results:
        np.testing.assert_allclose(result[name]["weights"], weights, rtol=rtol, atol=rtol / 10)
        assert result[name]["weights"] == results[0][name]["weights"]
        assert result[name]["history"].keys() == history.keys()
        for log, values in history.items():
            np.testing.assert_allclose(result[name]["history"][log], values, rtol=rtol)


@pytest.mark.parametrize("name", cases.FEW)
def test_two_workers_train_as_one(name: str, two: Results) -> None:
    assert_as_alone(name, two)


def test_shuffles_are_the_same_in_all_workers_and_runs(two: Results) -> None:
    with tf.Graph().as_default():  # without a global seed, as a single worker has none
        seeds = [*tf.compat.v1.random.get_seed(7)]
    assert [result["seeds"] for result in two] == [seeds] * 2


def test_functions_of_a_loop(two: Results) -> None:
    for rank, result in enumerate(two):
        assert result["functions"] == {
            "rank and size": [rank, 2],
            "sum": [2, 5.0, [2.0, 2.0, 2.0], True],
            "none": True,
            "rows": [[[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]], [0, 0, 1]],
            "in a graph": 4.0,
            "broadcast": [1, 7],
            "gather": [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}],
            "arrays": [[[0, 0], 0.0], [[1, 1], 1.0]],
            "no data": result["functions"]["no data"],
            "stop": [True, False],
            "gradients": [2.0, 4.0],
            "sparse": [0.0, 1.0],
            "large": 1e7,
        }
        assert "posix.getcwd, which is no data" in result["functions"]["no data"]


def test_a_loop_in_the_strategy(two: Results) -> None:
    loops = [result["loop"] for result in two]
    assert [loop.pop("seen") for loop in loops] == [[0, 1, 5, 6], [2, 3, 4, 7, 8, 9]]
    drawn = loops[0]["drawn"]
    expected = {
        "ordered": True,
        "total": 45,
        "reduced": 0.5,
        "gathered": [0, 1],
        "in a function": [2, 60],
        "replicas": 2,
        "drawn": drawn,
    }
    assert loops == [expected, expected]


def test_all_workers_save_or_stop_after_the_same_step(two: Results) -> None:
    assert [result["steps_in_common"] for result in two] == [[4, 5, 6]] * 2


def test_each_worker_gets_all_predictions(two: Results) -> None:
    assert np.shape(two[0]["predictions"]) == (cases.ROWS, 1)
    assert two[0]["predictions"] == two[1]["predictions"]


def test_fit_takes_kerass_own_list_of_callbacks(two: Results) -> None:
    kept, loss = two[0]["list_of_callbacks"]
    assert kept == 1  # the history
    assert two[1]["list_of_callbacks"] == [kept, loss]


def test_no_step_of_the_optimizer_is_without_rows(two: Results) -> None:
    for result in two:
        [(steps, own), (shared_steps, shared)] = result["own_rows"]
        assert steps == shared_steps == 8
        np.testing.assert_allclose(own, shared, rtol=2e-5, atol=2e-6)


def test_a_sum_is_the_same_in_a_validation_and_an_evaluation(two: Results) -> None:
    losses = [result["evaluated_sums"] for result in two]
    np.testing.assert_allclose(losses, [[losses[0][1]] * 4] * 2, rtol=1e-5)


def test_a_loop_in_a_callback_of_fit_gets_its_rows_alone(two: Results) -> None:
    assert [result["loop_in_a_callback"] for result in two] == [[[1.0, 1]], [[9.0, 9]]]


def test_a_step_that_is_a_function_may_be_compiled_again(two: Results) -> None:
    weights = [result["compiled_twice"] for result in two]
    assert weights[0] == weights[1]
    assert np.all(np.isfinite(weights[0]))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (
            "different_vocabularies",
            ["worker 0 has vocabulary 0 of string_lookup, with 2 entries ("],
        ),
        ("different_weights", ["has other values in worker 1 than in worker 0"]),
        ("different_models", ["worker 0 has", "worker 1 has", "32 (6, 4)", "32 (6, 5)"]),
        (
            "different_lengths",
            ["worker 0 is at the end of an epoch", "worker 1 has begun one step more"],
        ),
    ],
)
def test_differences_are_an_error_in_all_workers(name: str, texts: list[str], two: Results) -> None:
    assert all(text in result[name] for result in two for text in texts)


def test_methods_of_keras_are_its_own_after_a_run(two: Results) -> None:
    assert all(result["restored"] for result in two)


@pytest.mark.campaign("data", "training")
@pytest.mark.parametrize(("group", "size"), [("many", 2), ("some", 3), ("some", 4)])
def test_several_workers_train_as_one_whatever_the_model(
    group: str, size: int, tmp_path: Path
) -> None:
    results = run_workers(group, size, tmp_path)
    assert list(tmp_path.glob("xla/*cluster*")), "XLA has compiled nothing of jit_compile=True"
    for name, case in cases.GROUPS[group].items():
        if name in cases.MANY:
            assert_as_alone(name, results)
            continue
        expected = cases.fit_shares(case, size)
        for result in results:
            np.testing.assert_allclose(result[name]["weights"], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.campaign("data", "training")
def test_so_do_three_of_keras_2_in_tensorflows_own_strategy(tmp_path: Path) -> None:
    expected = cases.fit_keras_2(tf.distribute.get_strategy())
    for result in run_workers("keras_2", 3, tmp_path):
        np.testing.assert_allclose(result["weights"], expected["weights"], rtol=2e-5, atol=2e-6)
        for log, values in expected["history"].items():
            np.testing.assert_allclose(result["history"][log], values, rtol=2e-5)
