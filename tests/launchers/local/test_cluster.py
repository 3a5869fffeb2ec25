"""Several workers on this machine: what each is told, reads and prints."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core.cluster import Task
from generic_trainer._core.keras import is_keras_3, keras_version
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerHangError
from generic_trainer.launchers import Distribution
from generic_trainer.launchers._local.resources import own_environment
from tests.helpers import run_fn
from tests.launchers import jobs
from tests.launchers.jobs import Run, runner, told

# What each of two workers sums up of its share, and the weights that they end with.
MULTI_WORKER = """
from generic_trainer import training

def run_fn(fn_args):
    strategy = training.get_strategy()
    assert strategy.num_replicas_in_sync == 2, strategy
    with strategy.scope():
        weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    seen = []
    for batch in strategy.experimental_distribute_dataset(read(fn_args)):
        strategy.run(lambda batch: weight.assign_add(tf.reduce_sum(batch["x"])), args=(batch,))
        for local in strategy.experimental_local_results(batch["x"]):
            seen += [int(x) for x in tf.reshape(local, [-1])]
    print("seen:", *sorted(seen))
    print("weight:", float(strategy.experimental_local_results(weight)[0]))
    export(fn_args.serving_model_dir)
"""
# Each worker prints the weights and losses that it ends with.
KERAS = """
from generic_trainer import training

def callbacks(fn_args):
    return []

def run_fn(fn_args):
    strategy = training.get_strategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(tf.keras.optimizers.Adam(0.01), "mse")
    data = read(fn_args, num_epochs=None).map(lambda batch: (batch["x"], batch["y"]))
    history = model.fit(
        data, steps_per_epoch=10, epochs=2, verbose=0, callbacks=callbacks(fn_args)
    ).history
    print("ends:", *model.get_weights()[0].ravel(), *history["loss"])
    export(fn_args.serving_model_dir)
"""
# The same with a signal to some workers after one of their steps, the first time, and a checkpoint
# every so many steps.
SIGNALLED = f"""
import json, os, signal
{KERAS}
class Signal(tf.keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        flag = f"{{self.folder}}/signalled-{{rank}}"
        if rank in WORKERS and self.steps == STEP and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGNAL)

def callbacks(fn_args):
    Signal.folder = fn_args.model_run_dir
    return [Signal(), *training.resume_callbacks(fn_args, every_steps=EVERY)]
"""
PARAMETER_SERVERS = """
from generic_trainer import training

def run_fn(fn_args):
    strategy = training.get_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(0.0)
    print("the variable is on", weight.device)

    @tf.function
    def step():
        weight.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    print("steps:", float(weight))
    export(fn_args.serving_model_dir)
"""


def test_each_worker_reads_its_share_once_and_all_have_the_same_weights(run: Run) -> None:
    job = run(MULTI_WORKER, num_workers=2)
    seen = {name: set(numbers.split()) for name, numbers in told(job, "seen:").items()}
    assert seen.keys() == {"worker 0", "worker 1"}
    assert len(seen["worker 0"]) == len(seen["worker 1"]) == 16
    assert seen["worker 0"] | seen["worker 1"] == {str(number) for number in range(32)}
    weights = told(job, "weight:")
    assert weights["worker 0"] == weights["worker 1"] == "496.0"
    assert jobs.exported(job) == ["Format-Serving"]


def signalled(workers: tuple[int, ...], **values: Any) -> str:
    source = SIGNALLED.replace("WORKERS", str(workers))
    for name, value in values.items():
        source = source.replace(name.upper(), str(value))
    return source


@pytest.mark.campaign("launchers", "training")
@pytest.mark.parametrize(
    ("preempted", "legacy"),
    [((0,), "0"), ((1,), "0"), ((1,), "1"), ((0, 1), "0")],  # Keras 2 takes a minute to trace
)
def test_sigterm_has_all_workers_save_after_the_same_step(
    run: Run, preempted: tuple[int, ...], legacy: str
) -> None:
    source = signalled(preempted, step=17, signal="SIGTERM", every=1000)
    job = run(source, num_workers=2, max_failures=1, env={"TF_USE_LEGACY_KERAS": legacy})
    log = jobs.log(job)
    assert len(re.findall("SIGTERM: training was preempted in epoch 2 after 18 steps", log)) >= 2
    assert "Resuming in epoch 2 after 8 of its batches (18 steps in all)" in log
    assert len(set(told(job, "ends:").values())) == 1


@pytest.mark.campaign("launchers", "training")
def test_keras_3_ends_the_same_when_a_worker_is_killed_in_mid_epoch(
    examples: Path, tmp_path: Path
) -> None:
    ends = []
    for workers in ((), (1,)):
        run = runner(tmp_path / str(len(workers)), examples, "local")
        source = signalled(workers, step=8, signal="SIGKILL", every=3)
        env = {"TF_USE_LEGACY_KERAS": "0"}
        job = run(source, num_workers=2, max_failures=len(workers), env=env)
        ends.append(told(job, "ends:"))
    assert "worker 1: its process was ended by SIGKILL" in jobs.log(job)
    # The checkpoint of step 6 may be on its way to the disk still.
    assert re.search("Resuming in epoch 1 after [36] of its batches", jobs.log(job))
    assert ends[0] == ends[1]
    assert ends[0]["worker 0"] == ends[0]["worker 1"]


def test_keras_3_trains_on_several_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    job = run(KERAS, num_workers=2)
    ends = told(job, "ends:")
    assert ends.keys() == {"worker 0", "worker 1"}
    assert len(set(ends.values())) == 1
    assert jobs.exported(job) == ["Format-Serving"]
    assert jobs.log(job).count("tf.keras is Keras 3.") == 2


def test_a_module_that_imports_tf_keras_gets_tensorflows_own_strategy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    source = """
    from tf_keras import layers
    from generic_trainer import training

    def run_fn(fn_args):
        print("strategy:", type(training.get_strategy()).__name__)
        export(fn_args.serving_model_dir)
    """
    job = run(source, num_workers=2)
    assert {*told(job, "strategy:").values()} == {"CollectiveAllReduceStrategy"}


def test_keras_3_under_tensorflows_own_strategy_is_told_the_line_to_change(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    own = "tf.distribute.MultiWorkerMirroredStrategy()"
    source = KERAS.replace("training.get_strategy()", own)
    with pytest.raises(ConfigurationError, match=r"Write strategy = training\.get_strategy\(\)"):
        run(source, num_workers=2)


def test_chief_trains_with_the_workers_and_parameter_servers_it_is_given(run: Run) -> None:
    job = run(PARAMETER_SERVERS, num_workers=2, parameter_servers=1)
    assert "[chief] steps: 10.0" in jobs.log(job)
    assert "the variable is on /job:ps/replica:0/task:0" in jobs.log(job)
    assert "[worker 1] " in jobs.log(job)
    assert jobs.exported(job) == ["Format-Serving"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("distributed.barrier('at the end')", "0 at the end; worker 1 at the end of run_fn"),
        ("distributed.all_reduce(1.0)", "worker 1 is at the end of run_fn"),
        ("tf.distribute.MirroredStrategy()", "Write strategy = training.get_strategy"),
    ],
)
def test_worker_that_does_alone_what_needs_all_is_told_at_once(
    run: Run, statement: str, message: str
) -> None:
    body = f"""
    from generic_trainer.training import distributed, is_chief
    distributed.all_reduce(1.0)
    if is_chief():
        {statement}
    """
    with pytest.raises((ConfigurationError, TrainingError), match=message):
        run(run_fn(body), num_workers=2, timeout_s=300)


@pytest.mark.campaign("launchers", "training")
def test_workers_of_keras_2_that_train_on_other_lengths_are_told(run: Run) -> None:
    source = KERAS.replace("steps_per_epoch=10", "steps_per_epoch=5 + training.is_chief()")
    with pytest.raises(ConfigurationError, match=r"worker 1 has batches of an epoch 5\."):
        run(source, num_workers=2, env={"TF_USE_LEGACY_KERAS": "1"})


def test_worker_that_never_comes_up_is_named(run: Run) -> None:
    body = """
    from generic_trainer import training

    def wait_for_ever():
        threading.Event().wait()

    training.get_strategy() if training.is_chief() else wait_for_ever()
    """
    with pytest.raises(WorkerHangError, match=r"No server of worker 1 ever came up") as caught:
        run(run_fn(body), num_workers=2, timeout_s=20)
    assert "in wait_for_ever" in str(caught.value)


def test_worker_that_works_on_after_the_chief_is_told_of(run: Run) -> None:
    source = """
    import time
    from generic_trainer import training

    def run_fn(fn_args):
        export(fn_args.serving_model_dir)
        while not training.is_chief():
            print("not yet done")
            time.sleep(0.1)
    """
    job = run(source, num_workers=2, worker_grace_s=1.0)
    log = jobs.log(job)
    assert "worker 1 still worked 1 s later (worker_grace_s) and was stopped" in log
    assert re.search("worker 1 was here:.* in run_fn", log, re.DOTALL)
    assert log.count("[worker 1] not yet done\n") > 2
    assert jobs.exported(job) == ["Format-Serving"]


def test_worker_has_the_keras_of_this_process_whatever_the_environment_says_since(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow_transform")
    # As importing it does, here and in the worker.
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", str(int(is_keras_3())))
    body = "import tensorflow_transform; print('layers:', tf.keras.layers.Layer.__module__)"
    job = run(run_fn(body))
    assert f"layers: {tf.keras.layers.Layer.__module__}\n" in jobs.log(job)
    assert f"tf.keras is Keras {keras_version()}\n" in jobs.log(job)


def test_lines_of_single_workers_have_no_prefix(run: Run) -> None:
    job = run(run_fn("print('alone')"))
    assert "\nalone\n" in jobs.log(job)


def test_processors_are_shared_out(run: Run) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    body = "print('processors:', *os.sched_getaffinity(0))"
    job = run(run_fn(body), num_workers=2, cpus_per_worker=1)
    processors = told(job, "processors:")
    assert len(set(processors.values())) == 2
    assert all(" " not in each for each in processors.values())


def test_gpus_that_are_missing_are_missed_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(ConfigurationError, match="need 6 GPUs, but this machine has 4"):
        run("def run_fn(fn_args): pass", num_workers=2, gpus_per_worker=3)


@pytest.mark.parametrize(
    ("gpus", "options", "seen"),
    [
        (["0", "1", "2", "3"], {}, ["0,1", "2,3"]),
        (["0", "1", "2"], {}, ["0", "1"]),
        (["0"], {}, [None, None]),  # both use it
        (["0", "1"], {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, ["1", "1"]),
        (["0", "1"], {"gpus_per_worker": 0}, ["-1", "-1"]),
        (["0", "1", "2"], {"gpus_per_worker": 1}, ["0", "1"]),
        (["4", "5", "6", "7"], {"gpus_per_worker": 2}, ["4,5", "6,7"]),
    ],
)
def test_workers_share_out_the_gpus(
    gpus: list[str],
    options: dict[str, Any],
    seen: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    distribution = Distribution(launcher="local", num_workers=2, **options)
    addresses = {Task("worker", rank): f"a:{rank}" for rank in range(2)}
    environments = [own_environment(distribution, task, addresses, gpus) for task in addresses]
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in environments] == seen
