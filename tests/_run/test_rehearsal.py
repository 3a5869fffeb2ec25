"""What a rehearsal may refuse a run for, and what it may cost."""

from __future__ import annotations

import dataclasses
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


# Without a `fit` that ends, and with what must not happen for a model that is not trained.
TRAINS_LONG = """
import contextlib, pathlib, socket, subprocess

def run_fn(fn_args):
    rows = tf.data.TFRecordDataset(tf.io.gfile.glob(fn_args.train_files), compression_type="GZIP")
    spec = {name: tf.io.FixedLenFeature([1], tf.float32) for name in "xy"}
    rows = rows.batch(8, drop_remainder=True).map(lambda each: tf.io.parse_example(each, spec))
    keras_model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    keras_model.compile(loss="mse")
    pairs = rows.map(lambda each: (each["x"], each["y"])).repeat()
    keras_model.fit(pairs, epochs=1000, steps_per_epoch=1_000_000, verbose=0)
    assert tf.io.gfile.glob(fn_args.eval_files[0]) and fn_args.train_steps == 2
    reached = pathlib.Path("REACHED")
    with contextlib.suppress(OSError):
        (reached / "file").write_text("untrained")
    with contextlib.suppress(OSError):
        subprocess.run(["touch", reached / "program"])
    try:
        socket.socket()
        return
    except OSError:
        pass
    model = Doubler()
    tf.saved_model.save(model, fn_args.serving_model_dir, signatures=SIGNATURES)
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with start_checker() as checker:
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


def job_on_examples(folder: Path, run_fn: str) -> Job:
    (folder / "reached").mkdir()
    job = job_of(folder, run_fn.replace("REACHED", str(folder / "reached")))
    examples = helpers.write_examples(folder / "examples")
    files = {split: (f"{examples.uri}/Split-{split}/*",) for split in ("train", "eval")}
    request = dataclasses.replace(
        job.request, train_files=files["train"], eval_files=files["eval"], split_files=files
    )
    return dataclasses.replace(job, request=request)


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


@pytest.mark.slow
def test_by_default_a_wrong_signature_costs_no_training(tmp_path: Path, checker: Checker) -> None:
    with pytest.raises(ModelValidationError, match=r"rehearse=False.*\n.*signatures_exist"):
        rehearse(job_of(tmp_path, NO_SIGNATURE), ServingContract(signatures=()), checker)


def test_a_dry_run_finds_what_run_fn_exports_wrongly_and_leaves_nothing_else(
    tmp_path: Path, checker: Checker
) -> None:
    job = job_on_examples(tmp_path, TRAINS_LONG.replace("SIGNATURES", "{}"))
    note_training(job.request, 10_000.0)
    with pytest.raises(ModelValidationError, match=r"rehearse=False.*\n.*signatures_exist"):
        rehearse(job, ServingContract(signatures=()), checker)
    assert durations(job.request)["rehearsal"] > 0
    assert not Path(job.request.model_dir).exists()
    assert sorted(path.name for path in (tmp_path / "reached").iterdir()) == []


@pytest.mark.slow
def test_a_contract_can_ask_for_a_dry_run(tmp_path: Path, checker: Checker) -> None:
    run_fn = TRAINS_LONG.replace("SIGNATURES", "{'serving_default': model.serve}")
    run_fn = run_fn.replace("Doubler()", "Doubler(); model.weight.assign(float('nan'))")
    with pytest.raises(ModelValidationError, match="variables_finite"):
        rehearse(job_on_examples(tmp_path, run_fn), ServingContract(rehearse=True), checker)


@pytest.mark.parametrize(
    ("noted", "contract", "source"),
    [
        # 5 s, and a rehearsal takes longer as a rule
        ({"training": 100.0}, ServingContract(), NO_SIGNATURE),
        ({"training": 1000.0, "rehearsal": 51.0}, ServingContract(), NO_SIGNATURE),
        ({}, ServingContract(rehearse=False), NO_SIGNATURE),
        ({}, ServingContract(format="any"), NO_SIGNATURE),
        ({"training": 500.0}, ServingContract(), TRAINS_LONG),
        ({}, ServingContract(), TRAINS_LONG),
    ],
)
def test_no_rehearsal_where_it_costs_too_much_or_says_nothing(
    noted: dict[str, float],
    contract: ServingContract,
    source: str,
    tmp_path: Path,
    checker: Checker,
) -> None:
    job = job_of(tmp_path, source)
    path = Path(job.request.checkpoint_dir).parent / "durations.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(noted))
    rehearse(job, contract, checker)
    assert durations(job.request) == noted


def test_a_training_that_is_too_short_for_a_dry_run_is_not_noted(tmp_path: Path) -> None:
    request = job_of(tmp_path, "").request
    note_training(request, 100.0)
    assert durations(request) == {}
    note_training(request, 1000.0)
    assert durations(request) == {"training": 1000.0}


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
