"""Which exports of failed runs the next run may publish."""

import fractions
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorflow_model_analysis.proto import config_pb2

from generic_trainer._run.publish import kept_job
from generic_trainer._run.store import (
    KeptExport,
    find_kept_export,
    keep_failed_run,
    record_export,
    set_earlier_run_aside,
    with_run_key,
)
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.launchers import Job, TrainingRequest
from generic_trainer.user_code import UserCode
from tests._run.test_run_key import request_in
from tests.processes import tf_config

LOCAL = "Trainer/model_run/{}"
KUBEFLOW = "run-{}/Trainer_-{}/model_run"


def run_of(root: Path, number: int, layout: str = LOCAL, **changes: object) -> TrainingRequest:
    """Returns the request of a run of the node."""
    places = {
        "model_dir": str(root / "Trainer" / "model" / str(number)),
        "model_run_dir": str(root / layout.format(number, number)),
    }
    request = with_run_key(request_in(root, **places, **changes), {})
    Path(request.model_run_dir).mkdir(parents=True, exist_ok=True)
    return request


def failed(root: Path, layout: str = LOCAL, **changes: object) -> KeptExport:
    """Lets the last check of run 1 fail; returns what is kept of it."""
    request = run_of(root, 1, layout, **changes)
    model = Path(request.export_dir, "Format-Serving")
    model.mkdir(parents=True)
    (model / "saved_model.pb").write_text(f"model {len(changes)}")
    record_export(Job(request=request, fn_args_factory=""))
    keep_failed_run(request, TrainingError())
    return KeptExport.read(request.failed_run_dir)


@pytest.mark.parametrize("layout", [LOCAL, KUBEFLOW])
def test_the_next_run_of_the_same_key_finds_it(tmp_path: Path, layout: str) -> None:
    kept = failed(tmp_path, layout)
    assert find_kept_export(run_of(tmp_path, 2, layout)) == kept
    assert kept.files == {"Format-Serving/saved_model.pb": 7}


@pytest.mark.parametrize("trains", [False, True], ids=["fails before", "trains again"])
@pytest.mark.parametrize("layout", [LOCAL, KUBEFLOW])
def test_it_outlives_a_run_of_the_same_number(tmp_path: Path, layout: str, trains: bool) -> None:
    """Tasks are retried on Vertex AI with the same URIs; TFX's metadata may be deleted."""
    kept = failed(tmp_path, layout)
    again = run_of(tmp_path, 1, layout)
    set_earlier_run_aside(again)
    if trains:
        model = Path(again.export_dir, "Format-Serving")
        model.mkdir(parents=True)
        (model / "saved_model.pb").write_text("another model")
        record_export(Job(request=again, fn_args_factory=""))
    keep_failed_run(again, TrainingError())
    found = find_kept_export(run_of(tmp_path, 2, layout))
    assert found == (KeptExport.read(kept.directory) if trains else kept)
    assert found is not None and list(found.files.values()) == [13 if trains else 7]


@pytest.mark.parametrize("damaged", ["[1", "[1]", ""])
def test_a_run_whose_own_record_is_damaged_is_kept(tmp_path: Path, damaged: str) -> None:
    kept = failed(tmp_path)
    again = run_of(tmp_path, 1)
    Path(again.model_run_dir, "run.json").write_text(damaged)
    Path(again.model_run_dir, "training.log").write_text("it ends")
    keep_failed_run(again, TrainingError())
    assert Path(again.failed_run_dir, "training.log").read_text() == "it ends"
    assert find_kept_export(run_of(tmp_path, 2)) == kept


def test_runs_of_another_key_do_not(tmp_path: Path) -> None:
    failed(tmp_path)
    assert find_kept_export(run_of(tmp_path, 2, custom_config={"units": 16})) is None
    code = UserCode("trainer", digest="def")
    assert find_kept_export(run_of(tmp_path, 2, user_code=code)) is None
    kept = failed(tmp_path, user_code=code)  # in the same directory
    assert Path(kept.export_dir, "Format-Serving/saved_model.pb").read_text() == "model 1"


def delete(kept: KeptExport) -> None:
    shutil.rmtree(kept.directory)


def truncate(kept: KeptExport) -> None:
    Path(kept.export_dir, "Format-Serving", "saved_model.pb").write_bytes(b"a mod")


def damage(kept: KeptExport) -> None:
    Path(kept.directory, "run.json").write_text('{"files": ', encoding="utf-8")


def belong_to_others(kept: KeptExport) -> None:
    path = Path(kept.directory, "run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_keys": ["another"]}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (delete, None),
        (truncate, "Format-Serving/saved_model.pb is missing or has another size"),
        (damage, "missing or damaged"),
        (belong_to_others, "other inputs, code or hyperparameters"),
    ],
)
def test_what_cannot_be_relied_on_is_not_published(
    change: Callable[[KeptExport], None],
    reason: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(failed(tmp_path))
    assert find_kept_export(run_of(tmp_path, 2)) is None
    assert (reason or "") in caplog.text
    assert ("is not used" in caplog.text) == (reason is not None)


def test_workers_of_a_cluster_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(tmp_path)
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=2))
    assert find_kept_export(run_of(tmp_path, 2)) is None


def test_code_that_is_not_bundled_may_have_changed(tmp_path: Path) -> None:
    code = UserCode("trainer")
    kept = failed(tmp_path, user_code=code)
    assert find_kept_export(run_of(tmp_path, 2, user_code=code)) is None
    assert kept.files  # `generic-trainer publish --output` can still publish it


def test_its_job_is_read_without_unpickling(tmp_path: Path) -> None:
    eval_config = config_pb2.EvalConfig(model_specs=[config_pb2.ModelSpec(label_key="label")])
    plain = failed(tmp_path / "plain", eval_config=eval_config)
    assert kept_job(plain.directory).request.eval_config == eval_config
    other = failed(tmp_path / "other", custom_config={"object": fractions.Fraction(1, 3)})
    with pytest.raises(ConfigurationError, match=r"is pickled .*run the pipeline again"):
        kept_job(other.directory)


def test_an_export_that_is_published_in_part_is_not_used(tmp_path: Path) -> None:
    request = run_of(tmp_path, 1)
    Path(request.export_dir, "Format-Serving").mkdir(parents=True)
    record_export(Job(request=request, fn_args_factory=""), {"Format-TFMA/saved_model.pb": 7})
    keep_failed_run(request, TrainingError())
    assert find_kept_export(run_of(tmp_path, 2)) is None


def test_a_run_that_exported_nothing_leaves_nothing_to_publish(tmp_path: Path) -> None:
    request = run_of(tmp_path, 1)
    record_export(Job(request=request, fn_args_factory=""))
    keep_failed_run(request, TrainingError())
    with pytest.raises(ConfigurationError, match="expected the directory of a run that trained"):
        KeptExport.read(request.failed_run_dir)
