"""What every launcher does alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import DataError, ModuleFileError, TrainingError, WorkerMemoryError
from generic_trainer.launchers import Distribution, Job, launch
from tests import helpers
from tests.launchers import jobs

TRAINS = """
import os

def run_fn(fn_args):
    print("run_fn is in process", os.getpid())
    dataset = read(fn_args)
    total = sum(float(tf.reduce_sum(batch["x"])) for batch in dataset)
    print("the sum is", total)
    model = Doubler()
    model.weight.assign(float(fn_args.hyperparameters["weight"]))
    tf.saved_model.save(
        model, fn_args.serving_model_dir, signatures={"serving_default": model.serve}
    )

"""

LAUNCHERS: dict[str, dict[str, Any]] = {
    "in_process": {},
    "local": {},
    "ray": {},
}
SLOW = ("ray",)


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in LAUNCHERS
    ]
)
def run(request: pytest.FixtureRequest, examples: Path, tmp_path: Path) -> Callable[..., Job]:
    """Launches a module's source with one of the launchers, and returns the job."""
    if request.param == "ray":
        request.getfixturevalue("ray_nodes")
    distribution = Distribution(launcher=request.param, **LAUNCHERS[request.param])

    def run(source: str, **fields: Any) -> Job:
        job = jobs.make_job(tmp_path, examples, source, distribution=distribution, **fields)
        launch(job)
        return job

    return run


def test_run_fn_reads_the_data_and_exports_what_its_hyperparameters_say(
    run: Callable[..., Job],
) -> None:
    import tensorflow as tf

    job = run(TRAINS, hyperparameters={"weight": 3})
    assert jobs.exported(job) == ["Format-Serving"]
    assert "the sum is 496.0" in jobs.log(job)
    model = tf.saved_model.load(os.path.join(job.request.staging_dir, "Format-Serving"))
    served = model.signatures["serving_default"](tf.constant([helpers.example(2.0)]))
    assert served["outputs"].numpy().tolist() == [[6.0]]


def test_nothing_is_left_running(run: Callable[..., Job]) -> None:
    job = run(TRAINS, hyperparameters={"weight": 3})
    (line,) = [line for line in jobs.log(job).splitlines() if "run_fn is in process" in line]
    pid = int(line.split()[-1])
    assert pid == os.getpid() or not jobs.is_running(pid)


def test_all_kinds_of_output_are_kept(run: Callable[..., Job]) -> None:
    job = run(
        """
        import logging, subprocess, sys

        def run_fn(fn_args):
            print("printed")
            sys.stderr.write("to standard error\\n")
            logging.getLogger("mine").info("logged")
            tf.print("by TensorFlow")
            subprocess.run(["echo", "by a child"])
            export(fn_args.serving_model_dir)
        """
    )
    kept = jobs.log(job)
    for line in ("printed", "to standard error", "mine: logged", "by TensorFlow", "by a child"):
        assert line in kept


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("raise ValueError('no such layer')", TrainingError, "no such layer"),
        ("import sys; sys.exit(3)", TrainingError, "SystemExit"),
        ("[0] * (1 << 62)", WorkerMemoryError, "MemoryError"),
        ("fn_args.train_files = [__file__]; list(read(fn_args))", DataError, "trainer.py"),
    ],
    ids=["user code", "exit", "memory", "data"],
)
def test_error_arrives_with_its_class_and_traceback(
    run: Callable[..., Job], statement: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        run(f"def run_fn(fn_args):\n    {statement}")
    assert type(caught.value) is error
    assert "trainer.py" in str(caught.value.__cause__) + str(caught.getrepr(style="native"))


def test_module_that_cannot_be_imported_is_named(run: Callable[..., Job]) -> None:
    with pytest.raises(ModuleFileError, match="no_such_module"):
        run("import no_such_module\ndef run_fn(fn_args): pass")


def test_request_arrives_whole(run: Callable[..., Job]) -> None:
    job = run(
        """
        def run_fn(fn_args):
            print(fn_args.custom_config, fn_args.train_steps, fn_args.extra_inputs)
            print(fn_args.num_examples["train"])
            export(fn_args.serving_model_dir)
        """,
        custom_config={"layers": [1, 2], "set": {3}},
        train_steps=7,
        extra_inputs={"embeddings": ("a", "b")},
    )
    assert "{'layers': [1, 2], 'set': {3}} 7 {'embeddings': ['a', 'b']}\n32\n" in jobs.log(job)
