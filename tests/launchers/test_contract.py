"""The rules that `Launcher` states, for every engine, alone and with several workers."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.cluster import answers
from generic_trainer.errors import DataError, ModuleFileError, TrainingError, WorkerMemoryError
from generic_trainer.launchers import (
    Distribution,
    Job,
    TFJobOptions,
    TrainJobOptions,
    VertexOptions,
    launch,
)
from tests import helpers
from tests.launchers import batch, jobs
from tests.launchers.engines import SLOW_ENGINES, field_of, is_elsewhere, options_of, shared_folder
from tests.launchers.kubernetes_stand_in import kubernetes_stand_in
from tests.launchers.tutorials import GUIDE
from tests.processes import wait_until


def vertex_stand_in(folder: Path) -> Any:
    """Imports Google's client, which takes seconds, only where a test needs it."""
    from tests.launchers import vertex_stand_in

    return vertex_stand_in.vertex_stand_in(folder)


IMAGE = "example/trainer:1"
# Launcher → a stand-in for its service, and the options of jobs there that see the root.
STAND_INS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "tfjob": (kubernetes_stand_in, lambda root: TFJobOptions(IMAGE, volumes={"claim": str(root)})),
    "trainjob": (
        kubernetes_stand_in,
        lambda root: TrainJobOptions(IMAGE, volumes={"claim": str(root)}),
    ),
    "vertex": (vertex_stand_in, lambda root: VertexOptions(IMAGE, "mine", "here-1")),
    batch.NAME: (batch.installed, lambda root: {"folder": str(root)}),
}
LAUNCHERS = [
    "in_process",
    "local",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_ENGINES),
]


Wanted = Callable[..., Distribution]
Run = Callable[..., Job]
Notes = dict[str, list[dict[str, Any]]]
NothingRuns = Callable[[Notes], bool]


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    """The name of each launcher."""
    return str(request.param)


@pytest.fixture
def root(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """An empty folder that all workers see, for the pipeline root."""
    return shared_folder(pytestconfig, tmp_path)


@pytest.fixture
def wanted(request: pytest.FixtureRequest, launcher: str, root: Path) -> Iterator[Wanted]:
    """Makes distributions of a launcher, where it has what it needs."""
    options: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if is_elsewhere(request.config):
            options[field_of(launcher)] = stack.enter_context(options_of(request.config, launcher))
        elif launcher in STAND_INS:
            stand_in, options_for = STAND_INS[launcher]
            (root / "cluster").mkdir()
            stack.enter_context(stand_in(root / "cluster"))
            options[field_of(launcher)] = options_for(root)
        elif launcher == "ray":
            request.getfixturevalue("ray_nodes")
        yield lambda **fields: Distribution(launcher=launcher, **options, **fields)


@pytest.fixture
def run(wanted: Wanted, examples: Path, root: Path) -> Run:
    """Launches a module's source with one of the launchers, and returns the job."""

    def run(source: str, distribution: dict[str, Any] | None = None, **fields: Any) -> Job:
        job = jobs.make_job(
            root, examples, source, distribution=wanted(**(distribution or {})), **fields
        )
        launch(job)
        return job

    return run


def log(job: Job) -> str:
    """Returns what was kept of the workers' output, without what Ray puts before each line."""
    return re.sub(r"(?m)^\([^()\n]* pid=\d+[^()\n]*\) ", "", jobs.log(job))


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
    run: Run, statement: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        run(f"def run_fn(fn_args):\n    {statement}")
    assert type(caught.value) is error
    assert "trainer.py" in str(caught.value.__cause__) + str(caught.getrepr(style="native"))


def test_module_that_cannot_be_imported_is_named(run: Run) -> None:
    with pytest.raises(ModuleFileError, match="no_such_module"):
        run("import no_such_module\ndef run_fn(fn_args): pass")


ODD_CONFIG = {
    "tuple": (1, (2,)),
    "keys": {1: "one", None: 0, (1, 2): "pair"},
    "set": {3},
    "bytes": b"\x00",
    "__pickled__": "just a key",
    "__type__": "this too",
}


def test_values_arrive_and_all_kinds_of_output_are_kept(run: Run) -> None:
    # Each line is one write: Ray may show what is written at twice as two lines.
    body = """
    print("config: " + str(fn_args.custom_config))
    print("hyperparameters: " + str(fn_args.hyperparameters))
    sys.stderr.write("to standard error\\n")
    logging.getLogger("mine").info("logged")
    tf.print("by TensorFlow")
    subprocess.run(["echo", "by a child"])
    """
    hyperparameters = {"units": (8, 16), "rates": {1: 0.1}}
    job = run(helpers.run_fn(body), custom_config=ODD_CONFIG, hyperparameters=hyperparameters)
    kept = log(job)
    assert f"config: {ODD_CONFIG}\n" in kept
    assert "hyperparameters: {'units': (8, 16), 'rates': {1: 0.1}}\n" in kept
    for line in ("to standard error", "mine: logged", "by TensorFlow", "by a child"):
        assert line in kept


# ---- several workers -----------------------------------------------------------------------------

# Each worker that calls run_fn notes that it does, and waits until all of them have.
TOGETHER = """
import json, os, time
from generic_trainer import training

config = json.loads(os.environ.get("TF_CONFIG") or "{}")
cluster = config.get("cluster", {})
task = config.get("task", {"type": "worker", "index": 0})
name = f"{task['type']}-{task['index']}"

def note(fn_args):
    note = {"pid": os.getpid(), "export": fn_args.serving_model_dir, "cluster": cluster}
    with open(f"{fn_args.model_run_dir}/{name}.notes", "a") as file:
        file.write(json.dumps(note) + "\\n")
    print("this is", name)

def wait_for_all(fn_args):
    kinds = ["chief"] if "ps" in cluster else list(cluster)
    for name in [f"{kind}-{index}" for kind in kinds for index in range(len(cluster[kind]))]:
        deadline = time.monotonic() + 240
        while not os.path.exists(f"{fn_args.model_run_dir}/{name}.notes"):
            assert time.monotonic() < deadline, name
            time.sleep(0.05)

"""
# Shape → the fields of a distribution that say so, and type → number of the cluster's tasks.
SHAPES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "one worker": ({}, {}),
    "two workers": ({"num_workers": 2}, {"worker": 2}),
    "chief": ({"num_workers": 2, "chief": True}, {"chief": 1, "worker": 1}),
    # The two nodes of Ray have one processor each.
    "parameter servers": (
        {"num_workers": 1, "parameter_servers": 1, "cpus_per_worker": 0.5},
        {"chief": 1, "worker": 1, "ps": 1},
    ),
}
USUAL_SHAPES = [name for name in SHAPES if name != "chief"]


@pytest.fixture(params=USUAL_SHAPES)
def shape(request: pytest.FixtureRequest, launcher: str) -> str:
    """How many processes there are, and of which types."""
    if request.param != "one worker" and launcher == "in_process":
        pytest.skip("training in process has one worker")
    return str(request.param)


def trainers(shape: str) -> list[str]:
    """Returns the tasks that call run_fn, the one that exports first."""
    _, sizes = SHAPES[shape]
    if "ps" in sizes:
        return ["chief-0"]
    return [f"{kind}-{n}" for kind, size in sizes.items() for n in range(size)] or ["worker-0"]


def in_logs(task: str) -> str:
    """Returns what the log and errors call a task."""
    return "chief" if task == "chief-0" else task.replace("-", " ")


def notes(model_run: str | Path) -> Notes:
    """Returns task → what it has noted, attempt after attempt."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in Path(model_run).glob("*.notes")
    }


@pytest.fixture
def nothing_runs(pytestconfig: pytest.Config) -> NothingRuns:
    """Tells whether a run has left nothing running, as far as that can be seen from here."""
    return (lambda _: True) if is_elsewhere(pytestconfig) else no_process_runs


def no_process_runs(notes: Notes) -> bool:
    """Whether no worker runs any more, and no server of the cluster answers."""
    pids = {note["pid"] for each in notes.values() for note in each} - {os.getpid()}
    addresses = {
        address
        for each in notes.values()
        for note in each
        for group in note["cluster"].values()
        for address in group
    }
    # What Ray kills takes a moment to end.
    return wait_until(
        lambda: not any(map(jobs.is_running, pids)) and not any(map(answers, addresses)), 120.0
    )


@pytest.mark.parametrize("shape", SHAPES, indirect=True)
def test_run_that_ends_well_keeps_to_the_rules(
    run: Run, shape: str, nothing_runs: NothingRuns
) -> None:
    fields, sizes = SHAPES[shape]
    job = run(
        TOGETHER
        + """
def run_fn(fn_args):
    note(fn_args)
    wait_for_all(fn_args)
    assert sum(float(tf.reduce_sum(batch["x"])) for batch in read(fn_args)) == 496.0
    export(fn_args.serving_model_dir)
""",
        fields,
    )
    noted = notes(job.request.model_run_dir)
    train = trainers(shape)
    assert noted.keys() == set(train)
    assert jobs.exported(job) == ["Format-Serving"]
    for name, (note,) in noted.items():
        in_staging = note["export"].startswith(job.request.staging_dir)
        assert in_staging == (name == train[0])
        assert {kind: len(tasks) for kind, tasks in note["cluster"].items()} == sizes
    for name in train if sizes else []:
        shown = rf"(?m)^(?:\[{in_logs(name)}\] |\({in_logs(name)} pid=.*\) )this is {name}$"
        # Of pods the first one's log is shown; Vertex AI has logs of its own.
        is_first = name == train[0] and job.distribution.launcher != "vertex"
        if is_first or job.distribution.launcher not in STAND_INS:
            assert re.search(shown, jobs.log(job))
    assert nothing_runs(noted)


def test_error_of_a_worker_is_the_error_of_the_run(
    run: Run, shape: str, root: Path, nothing_runs: NothingRuns
) -> None:
    fields, sizes = SHAPES[shape]
    raises = trainers(shape)[-1]
    with pytest.raises(WorkerMemoryError, match="no such layer") as caught:
        run(
            TOGETHER
            + f"""
def run_fn(fn_args):
    note(fn_args)
    wait_for_all(fn_args)
    if name == "{raises}":
        raise MemoryError("no such layer")
    time.sleep(600)
""",
            fields,
        )
    text = str(caught.value.__cause__) + str(caught.getrepr(style="native"))
    assert "trainer.py" in text
    assert "MemoryError: no such layer" in text
    if sizes:
        assert caught.value.worker == in_logs(raises)
        assert str(caught.value).startswith(f"{in_logs(raises)}: ")
    noted = notes(root / "model_run/1")
    assert {len(attempts) for attempts in noted.values()} == {1}
    assert nothing_runs(noted)


# Each task counts its own attempts: a flag of the killed worker's could be seen by
# the others in their first attempt already, which would then end well.
KILLED = """
def run_fn(fn_args):
    note(fn_args)
    wait_for_all(fn_args)
    with open(f"{{fn_args.model_run_dir}}/{{name}}.notes") as file:
        first = len(file.readlines()) == 1
    if name == "{worker}" and first:
        os.kill(os.getpid(), 9)
    if first:
        time.sleep(600)
    export(fn_args.serving_model_dir)
"""


def test_lost_worker_is_replaced(
    run: Run, launcher: str, shape: str, nothing_runs: NothingRuns
) -> None:
    if launcher == "in_process":
        pytest.skip("a process that trains in itself cannot be replaced")
    worker = trainers(shape)[-1]
    source = TOGETHER + KILLED.format(worker=worker)
    job = run(source, {**SHAPES[shape][0], "max_failures": 1})
    noted = notes(job.request.model_run_dir)
    assert len(noted[worker]) == 2
    assert jobs.exported(job) == ["Format-Serving"]
    assert "failure 1 of the 1 that max_failures allows" in jobs.log(job)
    assert nothing_runs(noted)


# ---- code of others ------------------------------------------------------------------------------


# It takes long to trace in Keras 2.
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local"], indirect=True)
def test_code_of_others_trains_as_it_is(run: Run) -> None:
    job = run(GUIDE, {"num_workers": 2, "env": {"TF_USE_LEGACY_KERAS": "1"}})
    said = re.findall(r"(?m)^(?:\[worker \d\] )?(weights|sum|batch of.*): (.*)$", log(job))
    assert said and len({*said}) == len({name for name, _ in said}), said  # all workers alike
    assert jobs.exported(job) == ["Format-Serving"]
