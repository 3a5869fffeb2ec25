"""Experiments that go to a cluster: what is sent, and what becomes of it there."""

import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials import Categorical, Log
from generic_trainer.trials._scripts.job import run_experiment
from generic_trainer.trials.native import InvalidExperimentException, Mode, estimator
from tests.trials.native.jobs_api import head
from tests.trials.native.script import CONFIG

pytest.importorskip("ray")
ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("script.py")


@pytest.fixture
def ray_head(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "DET_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with head() as found:
        yield found


@pytest.fixture
def code(tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "script.py").write_bytes(SCRIPT.read_bytes())
    for name in ("notes.txt", "lib/top.txt", "lib/a.pyc", "data/big.csv", "data/small.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".detignore").write_text("# a comment\n/*.txt\ndata/*\n!data/small.csv\n")
    (folder / ".gitignore").write_text("script.py")
    monkeypatch.setattr(sys, "argv", [str(folder / "script.py"), "--fast", "a b"])
    return folder


def submit(ray_head, code, config=None, **options):
    with pytest.raises(SystemExit) as caught:
        estimator.init({**CONFIG, **(config or {})}, context_dir=str(code), **options)
    assert caught.value.code == 0
    return ray_head.jobs[-1]


def experiment(job):
    return json.loads(job["runtime_env"]["env_vars"]["GENERIC_TRAINER_EXPERIMENT"])


def test_the_folder_and_the_running_script_are_sent(ray_head, code):
    job = submit(ray_head, code, master_url=ray_head.url)
    assert job["entrypoint"] == (
        "python -m generic_trainer.trials._scripts.job script.py --fast 'a b'"
    )
    assert job["metadata"] == {"description": "one weight"}
    [package] = ray_head.packages.values()
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    sent = {".detignore", ".gitignore", "data/small.csv", "lib/top.txt", "script.py"}
    assert names == sent
    assert experiment(job) == {
        "config": CONFIG,
        "directory": f"/tmp/determined-cp/{job['submission_id']}",
    }


def test_the_address_may_come_from_the_environment(ray_head, code, monkeypatch):
    monkeypatch.setenv("DET_MASTER", ray_head.url.removeprefix("http://"))
    assert submit(ray_head, code, command=["script.py"])["entrypoint"].endswith(".job script.py")


@pytest.mark.parametrize("by_position", [1, 2, 3, 4])
def test_by_position_in_the_first_form(ray_head, code, by_position):
    given = {
        "mode": Mode.CLUSTER,
        "context_dir": str(code),
        "command": ["script.py", "x"],
        "master_url": ray_head.url,
    }
    args = list(given.values())[:by_position]
    kwargs = dict(list(given.items())[by_position:])
    with pytest.raises(SystemExit):
        estimator.init(CONFIG, *args, **kwargs)
    assert ray_head.jobs[0]["entrypoint"].endswith(".job script.py x")


def test_what_a_configuration_says_to_ray(ray_head, code):
    config = {
        "environment": {"environment_variables": {"cpu": None, "cuda": ["A=1", "B=x=y"]}},
        "resources": {"ray": {"entrypoint_num_gpus": 1}},
        "checkpoint_storage": {"type": "gcs", "bucket": "models", "prefix": "mnist/"},
        "hyperparameters": {"rate": Log(-4, -1, base=10), "kind": Categorical(["a", "b"])},
    }
    job = submit(ray_head, code, config, master_url=ray_head.url)
    assert job["runtime_env"]["env_vars"].items() >= {"A": "1", "B": "x=y"}.items()
    assert job["entrypoint_num_gpus"] == 1
    sent = experiment(job)
    assert sent["directory"].startswith("gs://models/mnist/experiment-")
    assert sent["config"]["hyperparameters"] == {
        "rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
        "kind": {"type": "categorical", "vals": ["a", "b"]},
    }


def test_a_test_on_the_cluster_is_one_batch(ray_head, code):
    config = {
        "hyperparameters": {
            "global_batch_size": 8,
            "rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
        },
        "searcher": {"name": "random", "max_trials": 9, "metric": "loss", "max_length": 100},
        "max_restarts": 5,
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/data"},
    }
    job = submit(ray_head, code, config, master_url=ray_head.url, test=True)
    sent = experiment(job)["config"]
    rate = sent["hyperparameters"].pop("rate")
    assert 1e-4 <= rate <= 1e-1
    assert sent == {
        "description": "[test-mode] one weight",
        "hyperparameters": {"global_batch_size": 8},
        "scheduling_unit": 1,
        "min_validation_period": {"batches": 1},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "max_restarts": 0,
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/data"},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "context_dir must be the folder with your code, .* but got ''"),
        ({"context_dir": "/no/such/folder"}, "context_dir must be the folder .*/no/such/folder"),
        ({"context_dir": str(ROOT / "tests"), "command": ["nothing.py"]}, "nothing.py is not in"),
        ({"context_dir": str(ROOT / "tests"), "command": ["../setup.py"]}, "is not in the context"),
        ({"context_dir": str(ROOT / "tests")}, r'Pass .* or command=\["train.py"\]'),
    ],
)
def test_what_cannot_be_submitted(options, message):
    with pytest.raises(InvalidExperimentException, match=message):
        estimator.init(CONFIG, **options)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("const.yaml", "must be a mapping, got 'const.yaml' of type str"),
        ({"resources": "x"}, "resources must be a mapping"),
        ({"environment": {"environment_variables": ["A"]}}, "environment_variables must be a list"),
    ],
)
def test_a_configuration_of_the_wrong_kind_is_not_sent(code, config, message):
    with pytest.raises(ConfigurationError, match=message):
        estimator.init(config, context_dir=str(code), command=["script.py"])


def test_no_cluster(code):
    with pytest.raises(ConfigurationError, match="No Ray cluster takes jobs at http"):
        estimator.init(CONFIG, context_dir=str(code), master_url="127.0.0.1:9")


def run_as_ray_does(ray_head, job, folder):
    """Unpacks the package of a job and runs its entrypoint there."""
    package = ray_head.packages[job["runtime_env"]["working_dir"].split("/")[-1]]
    zipfile.ZipFile(io.BytesIO(package)).extractall(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **job["runtime_env"]["env_vars"]}
    command = [sys.executable, *shlex.split(job["entrypoint"])[1:]]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


RANGES = {"global_batch_size": 1, "rate": {"type": "categorical", "vals": [1e-5, 0.05]}}
GRID = {"name": "grid", "metric": "loss", "max_length": {"batches": 4}}


def check_results(folder):
    slow, fast = json.loads((folder / "model_run" / "trials.json").read_text())
    assert (slow["exported"], fast["exported"]) == (False, True)
    assert [slow["batches"], fast["batches"]] == [4, 4]
    assert fast["best"] < slow["best"]
    assert (folder / "Format-Serving" / "saved_model.pb").exists()


def test_the_job_runs_the_whole_experiment(ray_head, code, tmp_path):
    config = {
        "hyperparameters": RANGES,
        "searcher": GRID,
        "checkpoint_storage": {"host_path": str(tmp_path / "results")},
    }
    job = submit(ray_head, code, config, command=["script.py", "{}"], master_url=ray_head.url)
    done = run_as_ray_does(ray_head, job, tmp_path / "job")
    assert done.returncode == 0, done.stderr
    check_results(tmp_path / "results" / job["submission_id"])


def test_a_trial_class_that_a_script_creates(tmp_path):
    script = tmp_path / "create.py"
    script.write_text(
        "from generic_trainer.trials.native import experimental\n"
        "from tests.trials.estimator.one_weight import OneWeight\n"
        "experimental.create(OneWeight, {}, context_dir='.')\n"
        "raise RuntimeError('the script goes no further')\n"
    )
    config = {"hyperparameters": RANGES, "searcher": GRID}
    run_experiment([str(script)], config, str(tmp_path / "results"))
    check_results(tmp_path / "results")


def test_a_script_without_a_model_to_serve(tmp_path, caplog):
    script = tmp_path / "no_receivers.py"
    script.write_text(
        "from tests.trials.estimator.one_weight import NoPredictions\n"
        "from tests.trials.native.script import CONFIG, estimator, train\n"
        "train(estimator.init(CONFIG), NoPredictions)\n"
    )
    config = {**CONFIG, "searcher": {"max_length": {"batches": 1}}}
    run_experiment([str(script)], config, str(tmp_path / "results"))
    assert "The experiment is finished; no model is exported" in caplog.text
    [trial] = json.loads((tmp_path / "results" / "model_run" / "trials.json").read_text())
    assert trial["batches"] == 1
