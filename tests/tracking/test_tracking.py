"""Runs of the executor, and what trackers are told of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from tfx import types

from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.tracking import (
    Metric,
    Outcome,
    TrackedRun,
    TrackedTrial,
    Tracking,
    parse_trackings,
    trackings_to_json,
)
from tests import helpers

# Two scalars, the second of a trial, and what an experiment notes of its trials.
TRAINS = """
import json, os

def run_fn(fn_args):
    run_dir = fn_args.model_run_dir
    for folder, name in (("train", "loss"), ("trials/2/training", "loss")):
        with tf.summary.create_file_writer(f"{run_dir}/{folder}").as_default():
            for step in (1, 2):
                tf.summary.scalar(name, 1 / step, step=step)
    trial = {"trial_id": 2, "hparams": {"rate": 0.1}, "error": None, "exported": True}
    with open(os.path.join(run_dir, "trials.json"), "w") as file:
        json.dump([trial], file)
    if fn_args.custom_config.get("fails"):
        raise ValueError("no luck today")
    export(fn_args.serving_model_dir)
"""
# A tracker of somebody else's, in a distribution of its own.
RECORDER = """
import dataclasses, json, os, time

class Recorder:
    def start(self, run):
        self.uri, self.told = run.uri, [dataclasses.asdict(run)]
        if run.uri == "refuses":
            raise PermissionError("who are you?")

    def log(self, metrics):
        self.told += [dataclasses.asdict(metric) for metric in metrics]

    def end(self, outcome):
        if self.uri == "hangs":
            time.sleep(600)
        with open(self.uri, "w") as file:
            json.dump([*self.told, dataclasses.asdict(outcome)], file)
"""


@dataclasses.dataclass
class Tracked:
    """A run that was told to every tracker that is installed, and to two that fail."""

    outputs: dict[str, list[types.Artifact]]
    told: Path
    mlruns: Path
    warnings: list[str]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> types.Artifact:
    return helpers.write_examples(tmp_path_factory.mktemp("inputs") / "examples")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site")
    information = site / "recorder-1.0.dist-info"
    information.mkdir()
    (site / "recorder.py").write_text(RECORDER)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    group = "[generic_trainer.trackers]\nrecorder = recorder:Recorder\n"
    (information / "entry_points.txt").write_text(group)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


@pytest.fixture(scope="module")
def tracked(
    recorder: None, examples: types.Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Tracked:
    folder = tmp_path_factory.mktemp("tracked")
    run = Tracked(
        helpers.output_artifacts(folder / "outputs"), folder / "told.json", folder / "mlruns", []
    )
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: run.warnings.append(record.getMessage())  # type: ignore[method-assign]
    trackings = [
        f"recorder:{run.told}",
        "recorder:refuses",
        Tracking(to="recorder", uri="hangs", timeout_s=1),
        *([f"mlflow:file://{run.mlruns}"] if importlib.util.find_spec("mlflow") else []),
        *(["wandb"] if importlib.util.find_spec("wandb") else []),
    ]
    logger = logging.getLogger("generic_trainer.tracking")
    logger.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        train(folder, examples, run.outputs, trackings, net={"units": [1, 2]})
    logger.removeHandler(handler)
    return run


def train(folder: Path, examples: Any, outputs: Any, tracking: Any, **config: Any) -> None:
    module_file = helpers.write_module(folder, TRAINS)
    properties = {"tracking": trackings_to_json(tracking), "custom_config": config}
    helpers.train(module_file, examples, outputs, **properties)


def test_tells_what_the_run_was_given_and_came_to(tracked: Tracked) -> None:
    start, *metrics, end = json.loads(tracked.told.read_text())
    assert (start["name"], start["experiment"]) == ("trainer 1", "generic-trainer")
    assert start["params"] == {
        "launcher": "in_process",
        "num_workers": "1",
        "custom_config.net.units": "[1, 2]",
    }
    assert start["tags"]["module_hash"] and start["tags"]["run_key"]
    values = [(each["trial"], each["name"], each["step"], each["value"]) for each in metrics]
    assert values == [
        *((None, "train/loss", step, 1 / step) for step in (1, 2)),
        *((2, "training/loss", step, 1 / step) for step in (1, 2)),
    ]
    trial = {"number": 2, "params": {"rate": 0.1}, "error": None, "exported": True}
    assert (end["status"], end["error"], end["trials"]) == ("finished", None, [trial])
    assert end["facts"]["size_bytes"] > 0
    assert end["model"] == helpers.published_model(tracked.outputs)
    names = {Path(path).name for path in end["files"]}
    assert names == {"report.html", "report.json", "training.log", "trials.json"}
    assert end["signature"] == {
        "name": "serving_default",
        "inputs": [["examples", "object", [-1]]],
        "outputs": [["outputs", "float32", [-1, 1]]],
    }


def test_a_tracker_that_fails_or_hangs_is_a_warning(tracked: Tracked) -> None:
    refused, late = tracked.warnings
    assert "recorder at refuses: PermissionError: who are you?" in refused
    assert "recorder at hangs: it takes longer than 1 s" in late


def test_tells_mlflow(tracked: Tracked) -> None:
    pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    (experiment,) = (path.parent for path in tracked.mlruns.glob("[!0]*/meta.yaml"))
    runs = {path.read_text(): path.parent.parent for path in experiment.glob("*/tags/*.runName")}
    assert sorted(runs) == ["trainer 1", "trial 2"]
    run, trial = runs["trainer 1"], runs["trial 2"]
    assert (run / "params/custom_config.net.units").read_text() == "[1, 2]"
    assert (trial / "tags/mlflow.parentRunId").read_text() == run.name
    assert (trial / "params/rate").read_text() == "0.1"
    for path in (run / "metrics/train/loss", trial / "metrics/training/loss"):
        logged = [line.split()[1:3] for line in path.read_text().splitlines()]
        assert logged == [["1.0", "1"], ["0.5", "2"]]
    assert (run / "artifacts/report.html").is_file()
    (described,) = experiment.rglob("MLmodel")
    assert "examples" in described.read_text() and "outputs" in described.read_text()

    import mlflow.tensorflow
    import tensorflow as tf

    predict = mlflow.tensorflow.load_model(str(described.parent))
    assert predict(examples=tf.constant([helpers.example(3.0)]))["outputs"].numpy() == 6.0


def test_tells_wandb_offline(tracked: Tracked) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("needs the extra `wandb`, which is large")
    model_run = Path(tracked.outputs["model_run"][0].uri)
    contents = [path.read_bytes() for path in model_run.glob("wandb/offline-run-*/*.wandb")]
    assert len(contents) == 2  # one of the trial
    assert any(b"train/loss" in each and b"report.html" in each for each in contents)
    assert any(b"training/loss" in each and b"rate" in each for each in contents)


@pytest.mark.usefixtures("recorder")
def test_tells_what_a_run_failed_with(
    examples: types.Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError('No module wandb')")
    outputs = helpers.output_artifacts(tmp_path / "outputs")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TrainingError):
        patch.syspath_prepend(tmp_path)
        told = tmp_path / "told.json"
        train(tmp_path, examples, outputs, [f"recorder:{told}", "wandb"], fails=True)
    end = json.loads(told.read_text())[-1]
    assert (end["status"], end["model"], end["signature"]) == ("failed", None, None)
    assert "no luck today" in end["error"]
    assert "No module wandb: install the extra `wandb` of generic-trainer" in caplog.text


def test_reads_what_it_writes() -> None:
    trackings = parse_trackings(
        ["mlflow", "mlflow:http://host:5000", Tracking(to="wandb", experiment="penguins")]
    )
    assert trackings[1].uri == "http://host:5000"
    text = trackings_to_json(trackings)
    assert text is not None and parse_trackings(json.loads(text)) == trackings
    assert (parse_trackings(None), trackings_to_json([])) == ((), None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mlfow:http://host", "did you mean 'mlflow'"),
        ("", "to must be a text"),
        ('{"to": "mlflow", "url": "x"}', "no field 'url'"),
        ('{"to": "mlflow"', "is no JSON"),
        ('{"to": "mlflow", "timeout_s": 0}', "timeout_s must be a positive number"),
        ("vertex:my-project", "projects/PROJECT/locations/REGION"),
        (3, "tracking must be a Tracking"),
        ([["mlflow"]], "tracking must be a Tracking"),
    ],
)
def test_refuses_what_is_no_tracking(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_trackings(value)


@pytest.mark.slow  # imports Google's client
def test_tells_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Vertex AI is here: its client says whether it would be called as it wants to be."""
    from google.cloud import aiplatform

    from generic_trainer.tracking._vertex import VertexTracker

    runs: dict[str, Any] = {}

    def create(run_name: str, experiment: str) -> Any:
        runs[run_name] = create_autospec(aiplatform.ExperimentRun, instance=True)
        return runs[run_name]

    monkeypatch.setattr(aiplatform, "init", create_autospec(aiplatform.init))
    monkeypatch.setattr(aiplatform, "Experiment", create_autospec(aiplatform.Experiment))
    monkeypatch.setattr(aiplatform.ExperimentRun, "create", create)
    tracker = VertexTracker()
    uri = "projects/mine/locations/europe-west4"
    tracker.start(TrackedRun("Trainer 1", uri, "My penguins", {"depth": 3}, {"module": "m"}, "/"))
    tracker.log([Metric("train/loss", 0.5, 2, 0.0), Metric("loss", 1.0, 1, 0.0, trial=4)])
    trial = TrackedTrial(4, {"rate": 0.1}, "ValueError: no", False)
    tracker.end(Outcome("finished", facts={"size_bytes": 7.0}, trials=[trial]))

    aiplatform.init.assert_called_once_with(
        project="mine", location="europe-west4", experiment="my-penguins"
    )
    run, trial_run = runs["trainer-1"], runs["trainer-1-trial-4"]
    run.log_params.assert_called_once_with({"depth": 3, "module": "m"})
    run.log_time_series_metrics.assert_called_once_with({"train/loss": 0.5}, step=2)
    run.log_metrics.assert_called_once_with({"train.loss": 0.5, "size_bytes": 7.0})
    trial_run.log_params.assert_called_once_with({"rate": 0.1, "exported": "False"})
    state = aiplatform.gapic.Execution.State
    run.end_run.assert_called_once_with(state=state.COMPLETE)
    trial_run.end_run.assert_called_once_with(state=state.FAILED)
