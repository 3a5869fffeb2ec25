"""Tests of tracking: runs of the executor, and the calls that trackers get."""

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
from generic_trainer.tracking import Metric, Tracking, parse_trackings, trackings_to_json
from generic_trainer.tracking._tracking import by_step
from tests import helpers

# Two scalars, the second of a trial, and what an experiment notes of its trials.
TRAINS = helpers.run_fn("""
    run_dir = fn_args.model_run_dir
    for folder, name in (("train", "loss"), ("trials/2/training", "loss")):
        with tf.summary.create_file_writer(f"{run_dir}/{folder}").as_default():
            for step in (1, 2):
                tf.summary.scalar(name, 1 / step, step=step)
    open(f"{run_dir}/trials.json", "w").write("[]")
    if fn_args.custom_config.get("fails"):
        raise ValueError("no luck today")
""")
# A tracker of another distribution.
RECORDER = """
import json, os, threading

class Recorder:
    def start(self, *, uri, directory, **run):
        self.uri, self.directory = uri, directory
        self.seen = {"run": run, "params": {}, "metrics": [], "files": []}
        if uri == "refuses":
            raise PermissionError("who are you?")

    def log_params(self, params):
        self.seen["params"] |= params

    def log_metrics(self, metrics):
        if self.uri.endswith("full"):
            raise OSError("no space left")
        self.seen["metrics"] += [(each.name, each.step, each.value) for each in metrics]

    def log_files(self, paths):
        self.seen["files"] += paths

    def end(self, status):
        if self.uri == "hangs":
            threading.Event().wait()
        with open(os.path.join(self.directory, "recorded"), "w") as file:
            file.write("by the tracker")
        with open(self.uri, "w") as file:
            json.dump({**self.seen, "status": status}, file)
"""


@dataclasses.dataclass
class Tracked:
    """A run that every installed tracker gets, and two that fail."""

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
    group, entry_point = "generic_trainer.trackers", "recorder = recorder:Recorder"
    helpers.install(site, "recorder", RECORDER, group, entry_point)
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
        f"recorder:{folder / 'full'}",
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


def test_sends_parameters_metrics_and_results(tracked: Tracked) -> None:
    seen = json.loads(tracked.told.read_text())
    assert seen["run"] == {"name": "trainer 1", "experiment": "generic-trainer"}
    assert seen["status"] == "finished"
    settings = {"launcher": "in_process", "num_workers": "1", "custom_config.net.units": "[1, 2]"}
    assert settings.items() <= seen["params"].items()
    assert seen["params"]["module_hash"] and seen["params"]["run_key"]
    names = ("train/loss", "trials/2/training/loss")
    assert [each for each in seen["metrics"] if each[0] in names] == [
        [name, step, 1 / step] for name in names for step in (1, 2)
    ]
    assert {name: value for name, _, value in seen["metrics"]}["size_bytes"] > 0
    *files, model = seen["files"]
    assert model == helpers.published_model(tracked.outputs)
    kept = ["report.html", "report.json", "training.log", "trials.json"]
    assert [Path(path).name for path in files] == kept


def test_a_tracker_that_fails_or_hangs_is_a_warning(tracked: Tracked) -> None:
    refused, full, late = tracked.warnings
    assert "recorder at refuses: PermissionError: who are you?" in refused
    assert "OSError: no space left" in full
    assert json.loads(tracked.told.with_name("full").read_text())["status"] == "finished"
    assert "recorder at hangs: TimeoutError: it takes longer than 1 s" in late


def test_sends_runs_to_mlflow(tracked: Tracked) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    client = mlflow.MlflowClient(f"file://{tracked.mlruns}")
    experiment = client.get_experiment_by_name("generic-trainer").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("trainer 1", "FINISHED")
    assert run.data.params["custom_config.net.units"] == "[1, 2]"
    for name in ("train/loss", "trials/2/training/loss"):
        logged = client.get_metric_history(run.info.run_id, name)
        assert [(each.step, each.value) for each in logged] == [(1, 1.0), (2, 0.5)]
    (artifacts,) = tracked.mlruns.glob("*/*/artifacts")
    assert (artifacts / "report.html").is_file()
    assert helpers.scores_of(artifacts / "model", 3.0) == [6.0]


def test_names_are_such_that_mlflow_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    from generic_trainer.tracking._mlflow import MlflowTracker

    names = ("a//b", "/x", "../y", "loss (m²)", "l=r", "l_r", "k" * 300, "..")
    tracker = MlflowTracker()
    tracker.start(name="n", uri=f"file://{tmp_path}", experiment="e", directory="")
    tracker.log_params({name: number for number, name in enumerate(names)})
    for step in (1, 2):
        tracker.log_metrics([Metric(name, 1.0, step, 0.0) for name in names])
    tracker.end("finished")
    client = mlflow.MlflowClient(f"file://{tmp_path}")
    experiment = client.get_experiment_by_name("e").experiment_id
    (run,) = client.search_runs([experiment])
    assert len(run.data.params) == len(run.data.metrics) == len(names)  # each has its own


def test_writes_runs_of_wandb_offline(tracked: Tracked) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("needs the extra `wandb`, which is large")
    model_run = Path(tracked.outputs["model_run"][0].uri)
    (path,) = model_run.glob("wandb/offline-run-*/*.wandb")
    content = path.read_bytes()
    assert all(name in content for name in (b"train/loss", b"report.html", b"training/loss"))


@pytest.mark.usefixtures("recorder")
def test_sends_the_error_of_a_failed_run(
    examples: types.Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError('No module wandb')")
    outputs = helpers.output_artifacts(tmp_path / "outputs")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TrainingError):
        patch.syspath_prepend(tmp_path)
        told = tmp_path / "told.json"
        train(tmp_path, examples, outputs, [f"recorder:{told}", "wandb"], fails=True)
    seen = json.loads(told.read_text())
    assert (seen["status"], len(seen["files"])) == ("failed", 2)  # the log and the trials
    assert "no luck today" in seen["params"]["error"]
    assert "No module wandb: install the extra `wandb` of generic-trainer" in caplog.text


def test_steps_of_a_second_fit_come_after_those_of_the_first() -> None:
    values = [("a", 9.0, 0), ("a", 8.0, 1), ("a", 7.0, 0), ("b", 6.0, 1)]
    rows = by_step(Metric(name, value, step, 0.0) for name, value, step in values)
    assert list(rows) == [(0, {"a": 9.0}), (1, {"a": 8.0, "b": 6.0}), (0, {"a": 7.0})]


def test_reads_its_own_json() -> None:
    penguins = Tracking(to="wandb", experiment="penguins")
    trackings = parse_trackings(["mlflow", "mlflow:http://host:5000", penguins])
    assert trackings[1].uri == "http://host:5000"
    text = trackings_to_json(trackings)
    assert text is not None and parse_trackings(json.loads(text)) == trackings


WRONG = [
    ("mlfow:http://host", "did you mean 'mlflow'"),
    ('{"to": "mlflow", "url": "x"}', "has no field 'url'"),
    ('{"to": "mlflow", "timeout_s": 0}', "timeout_s must be greater than 0"),
    ("vertex:my-project", "projects/PROJECT/locations/REGION"),
    ([["mlflow"]], "tracking must be a Tracking"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_refuses_wrong_trackings(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_trackings(value)


@pytest.mark.slow  # imports Google's client
def test_sends_runs_to_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
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
    tracker.start(name="Trainer 1", uri=uri, experiment="My penguins", directory="/")
    tracker.log_params({"net.depth": 3, "module": "m"})
    tracker.log_metrics([Metric("train/loss", 0.5, 2, 0.0)])
    [(name, run)] = runs.items()
    assert name.startswith("trainer-1-")
    run.log_metrics.side_effect = OSError
    with pytest.raises(OSError):
        tracker.end("failed")
    tracker.start(name="Trainer 1", uri=uri, experiment="My penguins", directory="/elsewhere")
    assert len(runs) == 2

    aiplatform.init.assert_called_with(
        project="mine", location="europe-west4", experiment="my-penguins"
    )
    run.log_params.assert_called_once_with({"net.depth": 3, "module": "m"})
    run.log_time_series_metrics.assert_called_once_with({"train/loss": 0.5}, step=2)
    run.log_metrics.assert_called_once_with({"train.loss": 0.5})
    run.end_run.assert_called_once_with(state=aiplatform.gapic.Execution.State.FAILED)
