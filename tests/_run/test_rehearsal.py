"""What a rehearsal may refuse a run for, and what it may cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._run.rehearsal import not_cured_by_training, note_training, rehearse
from generic_trainer.errors import ModelValidationError
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.user_code import bundle_module_file
from generic_trainer.validation import (
    Checker,
    Result,
    ServingContract,
    SignatureSpec,
    ValidationReport,
    start_checker,
)
from tests import helpers
from tests._run.test_run_key import request_in

GOOD = "def export_fn(fn_args): export(fn_args.serving_model_dir)"
NO_SIGNATURE = """
def export_fn(fn_args):
    tf.saved_model.save(Doubler(), fn_args.serving_model_dir, signatures={})
"""
# What training would make finite.
NAN = """
def export_fn(fn_args):
    model = Doubler()
    model.weight.assign(float("nan"))
    signatures = {"serving_default": model.serve}
    tf.saved_model.save(model, fn_args.serving_model_dir, signatures=signatures)
"""
NEEDS_WEIGHTS = "def export_fn(fn_args): open(fn_args.checkpoint_dir + '/weights')"
OF_ITS_OWN = "def export_fn(model, directory): export(directory)"


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with start_checker() as checker:
        yield checker


def job_of(folder: Path, source: str) -> Job:
    module_file = helpers.write_module(folder, source + "\n\ndef run_fn(fn_args): ...\n")
    code = bundle_module_file(module_file, str(folder / "bundle"))
    request = request_in(folder, user_code=code)
    for directory in (request.scratch_dir, request.model_run_dir):
        Path(directory).mkdir(parents=True)
    return Job(request=request, fn_args_factory="generic_trainer.executors._fn_args:make_fn_args")


def durations(request: TrainingRequest) -> dict[str, float]:
    path = Path(request.checkpoint_dir).parent / "durations.json"
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize(
    ("source", "told", "is_tried"),
    [
        pytest.param(GOOD, "", True, marks=pytest.mark.slow),
        pytest.param(NAN, "training may cure: variables_finite", True, marks=pytest.mark.slow),
        pytest.param(NEEDS_WEIGHTS, "after the training only", True, marks=pytest.mark.slow),
        (OF_ITS_OWN, "", False),
        ("", "", False),
    ],
)
def test_by_default_nothing_is_refused_that_training_may_cure(
    source: str,
    told: str,
    is_tried: bool,
    tmp_path: Path,
    checker: Checker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_of(tmp_path, source)
    rehearse(job, ServingContract(), checker)
    assert ("rehearsal" in durations(job.request)) == is_tried
    assert told in caplog.text
    assert ("WARNING" in caplog.text) == bool(told)


def test_by_default_a_wrong_signature_costs_no_training(tmp_path: Path, checker: Checker) -> None:
    with pytest.raises(ModelValidationError, match=r"rehearse=False.*\n.*signatures_exist"):
        rehearse(job_of(tmp_path, NO_SIGNATURE), ServingContract(signatures=()), checker)


@pytest.mark.parametrize(
    ("noted", "contract"),
    [
        ({"training": 100.0}, ServingContract()),  # 5 s, and a rehearsal takes longer as a rule
        ({"training": 1000.0, "rehearsal": 51.0}, ServingContract()),
        ({}, ServingContract(rehearse=False)),
        ({}, ServingContract(format="any")),
    ],
)
def test_no_rehearsal_where_it_costs_too_much_or_says_nothing(
    noted: dict[str, float], contract: ServingContract, tmp_path: Path, checker: Checker
) -> None:
    job = job_of(tmp_path, NO_SIGNATURE)
    note_training(job.request, noted.get("training", 1.0))
    path = Path(job.request.checkpoint_dir).parent / "durations.json"
    path.write_text(json.dumps(noted))
    rehearse(job, contract, checker)
    assert durations(job.request) == noted


def test_a_module_without_export_fn_notes_nothing(tmp_path: Path) -> None:
    request = job_of(tmp_path, "").request
    note_training(request, 100.0)
    assert durations(request) == {}


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


def of_outputs(tensor: str) -> ServingContract:
    return ServingContract(signatures=(SignatureSpec("serving_default", {}, {"outputs": tensor}),))


@pytest.mark.slow
def test_the_number_of_classes_may_come_from_training(tmp_path: Path, checker: Checker) -> None:
    rehearse(job_of(tmp_path, GOOD), of_outputs("float32[None, 5]"), checker)


@pytest.mark.slow
def test_the_type_of_an_output_does_not(tmp_path: Path, checker: Checker) -> None:
    with pytest.raises(ModelValidationError, match="signature_specs"):
        rehearse(job_of(tmp_path, GOOD), of_outputs("int64[None, 1]"), checker)
