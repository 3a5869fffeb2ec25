"""A finding has the values that a user compares, and a remedy for this fault.

Whether a check finds what it must is in test_broken_models; here is what its finding says.
"""

import dataclasses
import re
from pathlib import Path

import pytest

from generic_trainer.validation import lint_eval_config
from tests.validation import models
from tests.validation.broken_evaluations import contract, metric, spec
from tests.validation.broken_rows import RECIPES
from tests.validation.conftest import Check
from tests.validation.recipes import Recipe, damaging

NUMBER = r"-?[\d.]+(e[+-]\d+)?"
WARMUP = "assets.extra/tf_serving_warmup_requests"
BOUND = "value_threshold { lower_bound { value: 0.5 } }"
OF_AUC = f'thresholds {{ key: "auc" value {{ {BOUND} }} }}'
# Recipe → values in its message, a word that its remedy needs, and one that would lead astray.
FINDINGS = {
    "fails_above_64_rows": ("65 rows", "fixed sizes", "training=False"),
    "other_scores_above_64_rows": (
        f"{NUMBER} instead of {NUMBER}",
        "training=False",
        "fixed sizes",
    ),
    "too_slow": (f"takes {NUMBER} ms .* budget is 1e-06 ms", "max_latency_ms", "max_memory_mb"),
    "too_large": (f"took {NUMBER} MiB, the budget is 0.001 MiB", "max_memory_mb", "latency"),
    "variable_that_grows": (r"from \d+ to \d+ values", "bound", "training"),
    "table_that_grows": (r"from \d+ to \d+ entries", "bound", "training"),
    "warm_up_compressed": ("GZIP", "without options", "delete"),
    "vocabulary_of_an_earlier_run": ("2 lines .* 3 lines", "transform_graph_path", "scope"),
    "worker_device": ("/job:worker", "scope", "strategy.run"),
    "collective": ("CollectiveReduce", "strategy.run", "devices"),
    "gpu_device": ("GPU:0", "tf.device", "strategy"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_values_and_remedy(name: str, check: Check, good_model: Path, tmp_path: Path) -> None:
    require(RECIPES[name], *FINDINGS[name], check, good_model, tmp_path)


def require(
    recipe: Recipe,
    values: str,
    needed: str,
    astray: str,
    check: Check,
    good_model: Path,
    tmp_path: Path,
) -> None:
    """Looks for values, and for words of the remedy, in the finding of a recipe."""
    recipe.make(good_model, tmp_path / "model")
    result = check(tmp_path / "model", recipe.contract_for(good_model))[recipe.check]
    assert re.search(values, result.message, re.DOTALL), result
    assert needed in result.remedy and astray not in result.remedy, result


def test_misplaced_warm_up_requests(check: Check, good_model: Path, tmp_path: Path) -> None:
    def misplace(folder: Path) -> None:
        models.write_warmup(folder).rename(folder / Path(WARMUP).name)

    recipe = Recipe(damaging(misplace), "warmup", "warn", WARMUP, None)
    require(recipe, WARMUP, "move it to", "write", check, good_model, tmp_path)


def test_values_beyond_probabilities(check: Check, good_model: Path, tmp_path: Path) -> None:
    wanted = contract(f"{spec()} {metric('AUC', more='')}")
    of_classes = [models.example(0.1 * row, "cash", float(row % 2)) for row in range(40)]
    wanted = dataclasses.replace(wanted, examples=of_classes)
    recipe = Recipe(damaging(lambda folder: None), "eval_rehearsal", "warn", "", wanted)
    values = f"AUC .* from {NUMBER} to {NUMBER}"
    require(recipe, values, "sigmoid", "label", check, good_model, tmp_path)


@pytest.mark.parametrize(
    ("metrics", "values", "remedy"),
    [
        (
            metric(
                more="threshold { value_threshold { lower_bound { value: 0.75 } "
                "upper_bound { value: 0.5 } } }"
            ),
            "0.75 is above upper_bound 0.5",
            "exchange",
        ),
        (
            'metrics_specs { metrics { class_name: "MeanSquaredError" } ' + OF_AUC + " }",
            r"\['auc'\].*\['mean_squared_error'\]",
            "own entry",
        ),
        (metric(more=""), "Pusher", "lower_bound"),
    ],
    ids=["bounds", "uncomputed", "none"],
)
def test_thresholds_of_an_eval_config(metrics: str, values: str, remedy: str) -> None:
    result = lint_eval_config(contract(spec() + metrics).eval_config)
    assert re.search(values, result.message), result
    assert remedy in result.remedy, result
