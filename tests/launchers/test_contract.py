"""What every launcher does alike."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import DataError, ModuleFileError, TrainingError, WorkerMemoryError
from generic_trainer.launchers import Distribution, Job, TFJobOptions, launch
from tests import helpers
from tests.launchers import jobs
from tests.launchers.kubernetes_stand_in import kubernetes_stand_in

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

LAUNCHERS = [
    "in_process",
    "local",
    pytest.param("ray", marks=pytest.mark.slow),
    pytest.param("tfjob", marks=pytest.mark.slow),
]


@pytest.fixture(params=LAUNCHERS)
def distribution(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Distribution]:
    """One worker of each launcher, where it has what it needs."""
    if request.param == "tfjob":
        cluster = tmp_path / "cluster"
        cluster.mkdir()
        options = TFJobOptions(image="example/trainer:1", volumes={"claim": str(tmp_path)})
        with kubernetes_stand_in(cluster):
            yield Distribution(launcher="tfjob", tfjob=options)
        return
    if request.param == "ray":
        request.getfixturevalue("ray_nodes")
    yield Distribution(launcher=request.param)


@pytest.fixture
def run(distribution: Distribution, examples: Path, tmp_path: Path) -> Callable[..., Job]:
    """Launches a module's source with one of the launchers, and returns the job."""

    def run(source: str, **fields: Any) -> Job:
        job = jobs.make_job(tmp_path, examples, source, distribution=distribution, **fields)
        launch(job)
        return job

    return run


def log(job: Job) -> str:
    """Returns what was kept of the workers' output, without what Ray puts before each line."""
    return re.sub(r"(?m)^\([^()\n]* pid=\d+[^()\n]*\) ", "", jobs.log(job))


def test_run_fn_reads_the_data_and_exports_what_its_hyperparameters_say(
    run: Callable[..., Job],
) -> None:
    import tensorflow as tf

    job = run(TRAINS, hyperparameters={"weight": 3})
    assert jobs.exported(job) == ["Format-Serving"]
    assert "the sum is 496.0" in log(job)
    model = tf.saved_model.load(os.path.join(job.request.staging_dir, "Format-Serving"))
    served = model.signatures["serving_default"](tf.constant([helpers.example(2.0)]))
    assert served["outputs"].numpy().tolist() == [[6.0]]


def test_nothing_is_left_running(run: Callable[..., Job]) -> None:
    job = run(TRAINS, hyperparameters={"weight": 3})
    (line,) = [line for line in log(job).splitlines() if "run_fn is in process" in line]
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
    kept = log(job)
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
    assert "{'layers': [1, 2], 'set': {3}} 7 {'embeddings': ['a', 'b']}\n32\n" in log(job)
