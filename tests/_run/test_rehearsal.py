"""What a rehearsal may refuse a run for, and what it may cost."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._run.contract import not_cured_by_training, rehearse
from generic_trainer.errors import ModelValidationError
from generic_trainer.launchers import Job
from generic_trainer.user_code import bundle_module_file
from generic_trainer.validation import (
    Checker,
    Result,
    ServingContract,
    SignatureSpec,
    ValidationReport,
)
from tests import helpers
from tests._run.test_run_key import request_in

GOOD = "def export_fn(fn_args): export(fn_args.serving_model_dir)"
NO_SIGNATURE = """
def export_fn(fn_args):
    tf.saved_model.save(Doubler(), fn_args.serving_model_dir, signatures={})
"""
# What training would make finite.
NAN = "def export_fn(fn_args): export(fn_args.serving_model_dir, weight=float('nan'))"
NEEDS_WEIGHTS = "def export_fn(fn_args): open(fn_args.checkpoint_dir + '/weights')"
RUN_FN = "def run_fn(fn_args): raise AssertionError"
OF_ITS_OWN = "def export_fn(model, directory): export(directory)"


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as checker:
        yield checker


def job_of(folder: Path, source: str) -> Job:
    if "def run_fn" not in source:
        source += "\n\ndef run_fn(fn_args): ...\n"
    module_file = helpers.write_module(folder, source)
    code = bundle_module_file(module_file, str(folder / "bundle"))
    request = request_in(folder, user_code=code)
    for directory in (request.scratch_dir, request.model_run_dir):
        Path(directory).mkdir(parents=True)
    return Job(request=request, fn_args_factory="generic_trainer.executors._fn_args:make_fn_args")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param(NAN, "training may cure: variables_finite", marks=pytest.mark.slow),
        pytest.param(NEEDS_WEIGHTS, "only after the training", marks=pytest.mark.slow),
        (OF_ITS_OWN, ""),
        (RUN_FN, ""),
    ],
)
def test_by_default_nothing_is_refused_that_training_may_cure(
    source: str, told: str, tmp_path: Path, checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        rehearse(job_of(tmp_path, source), ServingContract(), checker)
    assert told in caplog.text
    assert ("Rehearsing" in caplog.text) == bool(told)


@pytest.mark.slow
def test_by_default_a_wrong_signature_costs_no_training(tmp_path: Path, checker: Checker) -> None:
    with pytest.raises(ModelValidationError, match=r"rehearse=False.*\n.*signatures_exist"):
        rehearse(job_of(tmp_path, NO_SIGNATURE), ServingContract(signatures=()), checker)


@pytest.mark.slow
def test_a_module_without_export_fn_is_not_rehearsed(
    tmp_path: Path, checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    rehearse(job_of(tmp_path, RUN_FN), ServingContract(rehearse=True), checker)
    assert "has no export_fn(fn_args): skipping the rehearsal" in caplog.text


@pytest.mark.parametrize(
    ("scores", "finite", "counts"),
    [("pass", "pass", True), ("skip", "skip", False), ("pass", "fail", False)],
)
def test_what_calls_the_model_counts_where_it_can_be_called(
    scores: Any, finite: Any, counts: bool
) -> None:
    names = {"scores": scores, "outputs_finite": finite, "session": "fail"}
    report = ValidationReport("", tuple(Result(name, status) for name, status in names.items()))
    assert [each.name for each in not_cured_by_training(report).failures] == ["session"] * counts


@pytest.mark.slow
def test_the_number_of_classes_may_come_from_training(tmp_path: Path, checker: Checker) -> None:
    classes = SignatureSpec("serving_default", {}, {"outputs": "float32[None, 5]"})
    rehearse(job_of(tmp_path, GOOD), ServingContract(signatures=(classes,)), checker)
