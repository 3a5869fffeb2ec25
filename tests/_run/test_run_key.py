"""Which runs find each other's checkpoints."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core.values import digest
from generic_trainer._run.run_key import parts_of_run_key
from generic_trainer._run.store import (
    claim_checkpoint_dir,
    keep_failed_run,
    read_facts,
    with_run_key,
)
from generic_trainer.errors import DataError, TrainingError
from generic_trainer.launchers import ExamplesFormat, TrainingRequest
from generic_trainer.user_code import UserCode, bundle_module_file
from tests.processes import locked_elsewhere


def request_in(root: Path, **changes: Any) -> TrainingRequest:
    """Returns a request with one file of examples below `root`."""
    split = root / "Split-train"
    split.mkdir(parents=True, exist_ok=True)
    (split / "data").write_text("examples", encoding="utf-8")
    request = TrainingRequest(
        user_code=UserCode("trainer", digest="abc"),
        train_files=(f"{split}/*",),
        eval_files=(),
        split_files={},
        examples_format=ExamplesFormat(6),
        model_dir=str(root / "model"),
        model_run_dir=str(root / "Trainer" / "model_run" / "7"),
        scratch_dir=str(root / "scratch"),
        train_steps=10,
        custom_config={"units": 8},
    )
    return dataclasses.replace(request, **changes)


def parts(request: TrainingRequest, **env: str) -> dict[str, str]:
    return parts_of_run_key(request, env)


def test_the_same_inputs_elsewhere_change_nothing_but_the_environment_does(tmp_path: Path) -> None:
    first, second = request_in(tmp_path / "a"), request_in(tmp_path / "b")
    assert parts(first) == parts(second)
    first, second = with_run_key(first, {}), with_run_key(second, {})
    assert (first.run_key, first.seed) == (second.run_key, second.seed)
    assert parts(first, RATE="0.1")["env"] != parts(first, RATE="0.2")["env"]


FILE = "file"
# Field in the key → another value.
OTHERS: dict[str, Any] = {
    "user_code": UserCode("trainer", digest="def"),
    "train_files": (FILE,),
    "eval_files": (FILE,),
    "examples_format": ExamplesFormat(7),
    "train_steps": 11,
    "eval_steps": 1,
    "schema_path": FILE,
    "transform_graph_path": FILE,
    "base_model": FILE,
    "hyperparameters": {"values": {"units": 16}},
    "custom_config": {"units": 16},
    "num_examples": {"train": 8},
    "extra_inputs": {"words": (FILE,)},
}


@pytest.mark.parametrize("field", dataclasses.fields(TrainingRequest), ids=lambda each: each.name)
def test_each_field_says_whether_it_is_in_the_key_and_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: dataclasses.Field[Any]
) -> None:
    declared = str(field.type).partition("[")[0]
    assert declared in ("InRunKey", "NotInRunKey"), "say which in TrainingRequest"
    if declared == "InRunKey":
        monkeypatch.chdir(tmp_path)
        Path(FILE).write_text("another input")
        before = request_in(tmp_path)
        after = dataclasses.replace(before, **{field.name: OTHERS[field.name]})
        assert parts(before) != parts(after)


def test_function_and_data_view_are_in_the_key(tmp_path: Path) -> None:
    for part, changes in {
        "run_fn": {"user_code": UserCode("other", digest="abc")},
        "data_view": {"examples_format": ExamplesFormat(6, str(tmp_path / "Split-train"))},
    }.items():
        first, second = parts(request_in(tmp_path)), parts(request_in(tmp_path, **changes))
        assert {name for name in first if first[name] != second[name]} == {part}


def test_versions_of_imported_packages_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "trainer.py"
    source.write_text("import os\nimport sklearn.svm\nimport yaml\n\ndef run_fn(fn_args): pass\n")
    code = bundle_module_file(str(source), str(tmp_path))
    request = request_in(tmp_path, user_code=code)
    packages = parts(request)["packages"]
    names = {each.rpartition(" ")[0].lower() for each in packages.split(", ")}
    assert names == {"keras", "numpy", "scikit-learn", "tensorflow", "tf_keras", "pyyaml"}
    installed = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: installed(name) + ".1" * (name == "numpy")
    )
    assert parts(request)["packages"] != packages
    installed_code = request_in(tmp_path, user_code=UserCode("yaml.trainer"))
    assert "PyYAML" in parts(installed_code)["packages"]


def test_which_keras_tf_keras_is_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for package in ("keras", "tf_keras"):
        monkeypatch.setattr(tf, "keras", importlib.import_module(package))
        keys.append(parts(request_in(tmp_path)))
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == {"TF_USE_LEGACY_KERAS"}


@pytest.mark.parametrize(
    "uri", ["projects/1/models/{}", "model-v{}", "bq://p.d.t{}", "https://example.org/{}"]
)
def test_an_input_that_is_no_path_counts_by_its_name(tmp_path: Path, uri: str) -> None:
    def keyed(version: int) -> str:
        named = {"other": (uri.format(version),)}
        return parts(request_in(tmp_path, extra_inputs=named))["extra_inputs[other]"]

    assert keyed(2) == keyed(2) != keyed(3)


def test_files_and_directories_count_with_all_their_content(tmp_path: Path) -> None:
    graph = tmp_path / "graph[1]" / "transform_fn"
    graph.mkdir(parents=True)
    request = request_in(tmp_path, transform_graph_path=str(graph.parent))
    before = parts(request)
    (graph / "saved_model.pb").write_text("x", encoding="utf-8")
    (tmp_path / "Split-train" / "data").write_text("others", encoding="utf-8")
    after = parts(request)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"transform_graph", "train_files"}


def test_an_input_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    request = request_in(tmp_path, schema_path="nowhere://schema.pbtxt")
    with pytest.raises(DataError, match=r"nowhere://schema\.pbtxt"):
        parts(request)


@pytest.mark.parametrize(
    ("model_run_dir", "node_dir"),
    [
        ("/root/Trainer/model_run/7", "/root/Trainer"),
        ("gs://b/root/Trainer.big/model_run/7", "gs://b/root/Trainer.big"),
        ("gs://b/root/4711/run-2026/Trainer_-31457/model_run", "gs://b/root/4711/Trainer"),
        ("gs://b/root/4711/run-2/Trainer_2_3145700000000/model_run", "gs://b/root/4711/Trainer_2"),
        ("/root/run-1/trainer/model_run", "/root/trainer"),
        ("/root/run-1/t/9f5d27b0-11c2-4d5e-8a3b-0123456789ab/model_run", "/root/t"),
        ("/root/run-1/Trainer_1/model_run", "/root/Trainer_1"),
        ("/root/run-1/Trainer_20261128/model_run", "/root/Trainer_20261128"),
        ("/tmp/somewhere/run", "/tmp/somewhere"),
    ],
)
def test_all_executions_of_a_node_look_in_one_place(
    tmp_path: Path, model_run_dir: str, node_dir: str
) -> None:
    request = request_in(tmp_path, model_run_dir=model_run_dir, run_key="key")
    assert request.checkpoint_dir == f"{node_dir}/.checkpoints/key"


def claimed(root: Path, checkpoints: bool, **changes: Any) -> Path:
    """Returns the checkpoint directory of a run with other settings."""
    key = parts(request_in(root, **changes))
    directory = root / "checkpoints" / digest(key)
    claim_checkpoint_dir(str(directory), key)
    (directory / "fit").mkdir()
    (directory / "fit" / ("state" if checkpoints else ".lock")).touch()
    return directory


def test_starting_afresh_says_what_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = parts(request_in(tmp_path))
    with caplog.at_level(logging.INFO):
        first = claimed(tmp_path, checkpoints=True)
        claimed(tmp_path, checkpoints=False, train_steps=11, custom_config={})
        assert f"{first.name} are not used: custom_config, train_steps changed" in caplog.text
        caplog.clear()
        claim_checkpoint_dir(str(first), key)
    assert "An earlier attempt at this run may have left checkpoints" in caplog.text


def test_a_run_that_never_used_its_directory_leaves_none(tmp_path: Path) -> None:
    request = request_in(tmp_path, model_run_dir=str(tmp_path / "model_run" / "7"))
    directory = Path(request.checkpoint_dir)
    for is_used in (False, True):
        Path(request.model_run_dir).mkdir(parents=True, exist_ok=True)
        claim_checkpoint_dir(str(directory), parts(request))
        if is_used:
            (directory / "fit").touch()
        keep_failed_run(request, TrainingError())
        assert directory.exists() == is_used


def test_a_run_that_fails_leaves_the_directory_of_another_run_that_is_alive(tmp_path: Path) -> None:
    request = request_in(tmp_path, model_run_dir=str(tmp_path / "model_run" / "8"))
    directory = Path(request.checkpoint_dir)
    claim_checkpoint_dir(str(directory), parts(request))
    for is_alive in (True, False):
        Path(request.model_run_dir).mkdir(parents=True, exist_ok=True)
        (directory / "fit").mkdir(exist_ok=True)
        with (
            locked_elsewhere(directory / "fit" / ".lock") if is_alive else contextlib.nullcontext()
        ):
            keep_failed_run(request, TrainingError())
        assert directory.exists() == is_alive


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe\x00", b"[" * 100_000, b"", None])
def test_a_damaged_key_is_named_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    other = claimed(tmp_path, checkpoints=True, train_steps=11)
    (other / "run.json").unlink()
    if content is None:
        (other / "run.json").mkdir()
    else:
        (other / "run.json").write_bytes(content)
    claimed(tmp_path, checkpoints=False)
    assert f"{other.name}/run.json is damaged (" in caplog.text
    if content is not None:
        claim_checkpoint_dir(str(other), parts(request_in(tmp_path, train_steps=11)))
        assert read_facts(str(other))["key"]["train_steps"] == "11"
