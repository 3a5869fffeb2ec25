"""Small jobs for launchers, without TFX's artifacts around them."""

import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from generic_trainer._entry_points import may_define
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import Distribution, ExamplesFormat, Job, TrainingRequest, launch
from generic_trainer.launchers._registry import find_launcher
from generic_trainer.user_code import bundle_module_file
from tests import helpers

__all__ = ["Run", "exported", "is_running", "log", "make_job", "runner", "told"]

Run = Callable[..., Job]

EXPORTS = """
def run_fn(fn_args):
    print("this is worker 0")
    export(fn_args.serving_model_dir)
"""
WAITS = "import signal; signal.pause()"

_TF_EXAMPLE = 6

# For module files: the examples in batches.
_READ = f"""
def read(fn_args, batch_size=4, num_epochs=1):
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from generic_trainer.data import TensorFlowDatasetOptions

    options = TensorFlowDatasetOptions(batch_size=batch_size, num_epochs=num_epochs)
    schema = text_format.Parse('''{helpers.SCHEMA}''', schema_pb2.Schema())
    return fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, schema)
"""


def make_job(
    root: Path, examples: Path, source: str, *, distribution: Distribution, **request: Any
) -> Job:
    """Returns a job whose artifacts lie below `root`.

    Args:
        root: an empty folder.
        examples: folder of an Examples artifact.
        source: the module file; `export(directory)` and `read(fn_args)`
            are at hand in it.
        distribution: where to train.
        request: further fields of the `TrainingRequest`.
    """
    for name in ("model", "model_run", "scratch"):
        (root / name).mkdir(parents=True, exist_ok=True)
    module_file = helpers.write_module(root, _READ + textwrap.dedent(source))
    code = bundle_module_file(module_file, str(root / "bundles"), may_define=may_define)
    splits = {name: (f"{examples}/Split-{name}/*",) for name in ("train", "eval")}
    return Job(
        request=TrainingRequest(
            user_code=code,
            train_files=splits["train"],
            eval_files=splits["eval"],
            split_files=splits,
            examples_format=ExamplesFormat(_TF_EXAMPLE),
            model_dir=str(root / "model"),
            model_run_dir=str(root / "model_run" / "1"),
            scratch_dir=str(root / "scratch"),
            **request,
        ),
        fn_args_factory=FN_ARGS_FACTORY,
        distribution=distribution,
    )


def runner(
    root: Path, examples: Path, launcher: str, custom_config: Any = None, **usual: Any
) -> Run:
    """Returns a function that launches a module's source and returns the job.

    Its keyword arguments are fields of the distribution, which allows no failure unless they do;
    `options` are further ones of the launcher.

    Args:
        root: an empty folder.
        examples: folder of an Examples artifact.
        launcher: the launcher, unless a run asks for another.
        custom_config: that of the request.
        usual: options of the launcher.
    """

    def run(source: str, *, options: dict[str, Any] | None = None, **fields: Any) -> Job:
        if usual:
            fields[launcher] = find_launcher(launcher).options(**{**usual, **(options or {})})
        wanted = Distribution(**{"launcher": launcher, "max_failures": 0, **fields})
        more = {"seed": 1, "custom_config": custom_config}
        job = make_job(root, examples, source, distribution=wanted, **more)
        launch(job)
        return job

    return run


def told(job: Job, start: str) -> dict[str, str]:
    """Returns worker → the rest of its last line that starts so."""
    line = rf"^[\[(](.+?)(?: pid=\d+.*?)?[\])] {start} (.*)$"
    return dict(re.findall(line, log(job), re.MULTILINE))


def log(job: Job) -> str:
    """Returns what was kept of the workers' output."""
    return Path(job.request.log_path).read_text(encoding="utf-8")


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not only what nobody has waited for."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def exported(job: Job) -> list[str]:
    """Returns the names of what the chief exported."""
    export = job.request.export_dir
    return sorted(os.listdir(export)) if os.path.exists(export) else []
