"""Runs that train on a GPU, with all default checks; skipped where there is none.

Each is a command of its own, as TensorFlow takes a GPU's memory for as long as a process lives.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generic_trainer._core.machine import visible_gpus
from tests import helpers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not visible_gpus(), reason="needs a GPU")]

MODULE = """
import os, signal
import numpy as np
import tensorflow as tf
from generic_trainer import training

FEATURES = {name: tf.io.FixedLenFeature([1], tf.float32) for name in ("x", "y")}

def batches(fn_args):
    def parse(records):
        features = tf.io.parse_example(records, FEATURES)
        return features["x"] / 32, features["y"] / 64
    files = tf.data.Dataset.list_files(list(fn_args.train_files), shuffle=False)
    records = tf.data.TFRecordDataset(files, "GZIP").repeat()
    return records.batch(8, drop_remainder=True).map(parse)

class KillOnce(tf.keras.callbacks.Callback):
    def __init__(self, marker):
        super().__init__()
        self.marker, self.steps = marker, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 17 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

def run_fn(fn_args):
    config = fn_args.custom_config or {}
    tf.keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    if getattr(tf.keras, "__version__", "2.").startswith("2."):  # so that Dropout can be resumed
        tf.keras.backend.experimental.enable_tf_random_generator()
    if config.get("policy"):
        tf.keras.mixed_precision.set_global_policy(config["policy"])
    if config.get("takes_all_memory"):
        strategy = tf.distribute.get_strategy()
    else:
        strategy = training.get_strategy()
    print("replicas:", strategy.num_replicas_in_sync, type(strategy).__name__)
    with strategy.scope():
        layers = tf.keras.layers
        model = tf.keras.Sequential([
            tf.keras.Input([1]), layers.Dense(256, activation="relu"), layers.Dropout(0.3),
            layers.BatchNormalization(), layers.Dense(1, dtype="float32"),
        ])
        model.compile("adam", "mse", jit_compile=bool(config.get("jit_compile")))
    callbacks = [KillOnce(config["marker"])] if config.get("marker") else []
    model.fit(
        batches(fn_args), epochs=3, steps_per_epoch=10, verbose=2,
        callbacks=training.resume_callbacks(
            fn_args, callbacks=callbacks, every_steps=5
        ),
    )
    variable = model.trainable_variables[0]
    print("trained on", tf.convert_to_tensor(variable).device)
    print("peak bytes on the GPU:", tf.config.experimental.get_memory_info("GPU:0")["peak"])
    np.savez(os.path.join(fn_args.model_run_dir, "weights.npz"), *model.get_weights())
    features = {"x": FEATURES["x"]}
    training.export_model(
        model, fn_args, feature_spec=features, preprocess=lambda features: features["x"] / 32
    )
"""

Run = Callable[..., Path]


@pytest.fixture(params=["0", "1"], ids=["Keras of TensorFlow", "Keras 2"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Trains `MODULE` by `generic-trainer run`; returns the folder of its ModelRun."""
    module = tmp_path / "trainer.py"
    module.write_text(MODULE)
    helpers.write_examples(tmp_path / "examples")

    def run(
        name: str, *, distribution: Any = None, look: Callable[[], None] = int, **config: Any
    ) -> Path:
        output = tmp_path / name
        command = [sys.executable, "-m", "generic_trainer.cli", "run", str(module)]
        command += ["--examples", str(tmp_path / "examples"), "--output", str(output)]
        command += ["--custom-config", json.dumps({"name": name, **config})]
        command += ["--distribution", json.dumps(distribution or {})]
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": request.param}
        with open(tmp_path / f"{name}.log", "w+") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
            while process.poll() is None:
                look()
                time.sleep(0.2)
            said.seek(0)
            assert process.returncode == 0, said.read()[-8000:]
        (model,) = output.glob("model/*/Format-Serving/saved_model.pb")
        return output / "model_run" / model.parent.parent.name

    return run


def log(model_run: Path) -> str:
    return (model_run / "training.log").read_text()


def checks(model_run: Path) -> set[str]:
    """Returns the statuses of the checks."""
    report = json.loads((model_run / "report.json").read_text())
    return {result["status"] for result in report["results"]}


@pytest.mark.parametrize("launcher", ["in_process", "local"])
def test_a_model_that_was_trained_on_the_gpu_is_checked_and_published(
    run: Run, launcher: str
) -> None:
    # In process TensorFlow takes all memory of the GPU, and keeps it while the model is checked.
    model_run = run("run", distribution={"launcher": launcher}, takes_all_memory=True)
    assert "GPU:0" in log(model_run).partition("trained on ")[2].splitlines()[0]
    assert "fail" not in checks(model_run)


def test_nothing_but_the_training_takes_the_gpu(run: Run) -> None:
    seen: set[str] = set()
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    others = set(subprocess.run(command, capture_output=True, text=True).stdout.split())

    def look() -> None:
        pids = subprocess.run(command, capture_output=True, text=True).stdout.split()
        seen.update(set(pids) - others)

    run("run", distribution={"launcher": "local", "require_gpu": True}, look=look)
    assert len(seen) == 1


def test_a_killed_run_goes_on_to_the_same_weights(run: Run, tmp_path: Path) -> None:
    local = {"launcher": "local"}
    straight = np.load(run("straight", distribution=local) / "weights.npz")
    killed = run("killed", distribution=local, marker=str(tmp_path / "killed-once"))
    assert (tmp_path / "killed-once").exists()
    resumed = np.load(killed / "weights.npz")
    assert all(np.array_equal(resumed[name], straight[name]) for name in straight)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_and_xla_train_and_pass_the_checks(run: Run, policy: str) -> None:
    model_run = run("run", distribution={"launcher": "local"}, policy=policy, jit_compile=True)
    assert "GPU:0" in log(model_run).partition("trained on ")[2].splitlines()[0]
    assert "fail" not in checks(model_run)


def test_one_gpu_is_given_to_a_worker_that_asks_for_one(run: Run) -> None:
    model_run = run("run", distribution={"launcher": "local", "gpus_per_worker": 1})
    assert "replicas: 1" in log(model_run)
