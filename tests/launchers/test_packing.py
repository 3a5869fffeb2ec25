"""Jobs packed for other machines."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.cluster import Task
from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.values import to_json
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.launchers import Distribution
from generic_trainer.launchers._job import JobFolder, pack, with_carried_environment
from generic_trainer.launchers._worker_end import WorkerEnd
from generic_trainer.user_code import UserCode
from tests.launchers import jobs

# Of this process, of this machine, and Terraform's, which hold passwords and tokens.
NOT_CARRIED = [
    *("TF_CONFIG", "HOSTNAME", "TF_VAR_db_password", "TF_TOKEN_app_terraform_io", "TF_LOG"),
    *("TF_CLI_ARGS_apply", "TF_HTTP_PASSWORD", "TF_DATA_DIR", "TF_WORKSPACE"),
]
SOURCE = "def run_fn(fn_args): pass"


def test_settings_of_tensorflow_and_keras_go_along(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TF_FORCE_UNIFIED_MEMORY", "KERAS_BACKEND", *NOT_CARRIED):
        monkeypatch.setenv(name, "here")
    wanted = Distribution(launcher="local", env={"KERAS_BACKEND": "there", "OWN": "there"})
    job = jobs.make_job(tmp_path, examples, SOURCE, distribution=wanted)
    env = with_carried_environment(job).distribution.env
    assert env["TF_FORCE_UNIFIED_MEMORY"] == "here"
    assert (env["KERAS_BACKEND"], env["OWN"]) == ("there", "there")
    assert not env.keys() & {*NOT_CARRIED}


def test_keras_of_this_process_goes_along_and_what_is_asked_for_wins(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", str(int(is_keras_3())))
    job = jobs.make_job(tmp_path, examples, SOURCE, distribution=Distribution(launcher="local"))
    env = with_carried_environment(job).distribution.env
    assert env["TF_USE_LEGACY_KERAS"] == str(int(not is_keras_3()))
    wanted = Distribution(launcher="local", env={"TF_USE_LEGACY_KERAS": "true"})
    env = with_carried_environment(dataclasses.replace(job, distribution=wanted)).distribution.env
    assert env["TF_USE_LEGACY_KERAS"] == "true"


def test_bundle_that_is_gone_is_named_and_installed_code_needs_none(
    examples: Path, tmp_path: Path
) -> None:
    job = jobs.make_job(tmp_path, examples, SOURCE, distribution=Distribution(launcher="local"))
    request = dataclasses.replace(job.request, user_code=UserCode("installed"))
    assert pack(dataclasses.replace(job, request=request))["bundle"] is None
    bundle = Path(job.request.user_code.bundle or "")
    assert pack(job)["bundle"] == bundle.read_bytes()
    bundle.unlink()
    with pytest.raises(ModuleFileError, match=r"bundles/trainer-.*\.zip, cannot be read"):
        pack(job)


def test_workers_refuse_a_job_that_somebody_else_has_written(
    examples: Path, tmp_path: Path
) -> None:
    job = jobs.make_job(tmp_path, examples, SOURCE, distribution=Distribution())
    folder = JobFolder(str(tmp_path / "folder"))
    digest = folder.write(job, "tfjob", [str(tmp_path)])
    assert folder.read(digest).request.user_code.module == job.request.user_code.module
    flag = tmp_path / "ran"
    path = tmp_path / "folder" / "job.json"
    path.write_text(to_json({"request": WritesFile(str(flag))}))
    with pytest.raises(ConfigurationError, match=r"job\.json is not the job") as caught:
        folder.read(digest)
    assert caught.value.path == str(path)
    (tmp_path / "folder" / "chief-0.json").write_text(to_json(WritesFile(str(flag))))
    assert WorkerEnd.read(folder.end_of(Task("chief", 0))) is None
    assert not flag.exists()


class WritesFile:
    """Whoever unpickles it has a file more."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)
