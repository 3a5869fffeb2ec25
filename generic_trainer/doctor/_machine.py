"""The interpreter, the C library, processors, memory, GPUs and the Keras mode."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

from generic_trainer._core.machine import free_memory_bytes
from generic_trainer.data._budget import MEMORY_VARIABLE, default_budget_bytes
from generic_trainer.doctor._symptom import Symptom
from generic_trainer.errors import ConfigurationError

__all__ = ["keras_and_gpus", "machine"]

_PYTHONS = ((3, 10), (3, 13))
_MIN_GLIBC_OF_CURRENT_STACK = (2, 39)
_TIMEOUT_S = 300.0
_ASK_TENSORFLOW = """
import json, sys, tensorflow as tf
keras = sys.modules[tf.keras.layers.Layer.__module__.partition(".")[0]]
print(json.dumps({
    "keras": keras.__version__,
    "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
             for gpu in tf.config.list_physical_devices("GPU")],
    "cuda": tf.test.is_built_with_cuda(),
}))
"""


def machine() -> Iterator[Symptom]:
    """Yields findings about interpreter, C library, processors and memory."""
    yield _python()
    yield _glibc()
    yield Symptom("processors", "ok", str(len(os.sched_getaffinity(0))))
    yield _memory()


def keras_and_gpus() -> Iterator[Symptom]:
    """Yields what TensorFlow says of its Keras and its GPUs, asked in a process of its own."""
    command = [sys.executable, "-c", _ASK_TENSORFLOW]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return  # whatever is wrong with TensorFlow, its import has told
    yield _keras(told["keras"])
    yield _gpus(told["gpus"], told["cuda"])


def _python() -> Symptom:
    lowest, highest = _PYTHONS
    found = f"{platform.python_version()} at {sys.executable}"
    if lowest <= sys.version_info[:2] <= highest:
        return Symptom("Python", "ok", found)
    remedy = "use Python 3.10, or 3.11 to 3.13 where glibc is 2.39 or newer"
    return Symptom("Python", "fail", found, remedy)


def _glibc() -> Symptom:
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    found = f"{library} {version}".strip() or "unknown"
    if library == "glibc" and numbers >= _MIN_GLIBC_OF_CURRENT_STACK:
        return Symptom("C library", "ok", f"{found}: both stacks can be installed")
    return Symptom("C library", "ok", f"{found}: TFX 1.16 is the newest that has binaries for it")


def _memory() -> Symptom:
    try:
        budget = default_budget_bytes()
    except ConfigurationError as error:
        return Symptom("memory", "fail", str(error))
    found = (
        f"{free_memory_bytes() / 1e9:.1f} GB free; the reader keeps up to {budget / 1e9:.1f} GB of "
        f"columns in memory ({MEMORY_VARIABLE} changes that)"
    )
    return Symptom("memory", "ok", found)


def _keras(version: str) -> Symptom:
    variable = os.environ.get("TF_USE_LEGACY_KERAS")
    told = f"tf.keras is Keras {version}; TF_USE_LEGACY_KERAS is {variable or 'not set'}"
    if version.startswith("2."):
        return Symptom("Keras", "ok", told)
    remedy = (
        "set TF_USE_LEGACY_KERAS=1 for module files written for Keras 2, and for "
        "MultiWorkerMirroredStrategy, which Keras 3 cannot train under"
    )
    return Symptom("Keras", "ok", told, remedy)


def _gpus(names: list[str], built_with_cuda: bool) -> Symptom:
    if names:
        return Symptom("GPUs", "ok", ", ".join(names))
    if shutil.which("nvidia-smi") is None:
        return Symptom("GPUs", "ok", "none: training runs on processors")
    if not built_with_cuda:
        remedy = "pip install 'tensorflow[and-cuda]': this TensorFlow is built without CUDA"
    else:
        remedy = "pip install 'tensorflow[and-cuda]', and look at CUDA_VISIBLE_DEVICES"
    return Symptom("GPUs", "warn", "nvidia-smi is there, but TensorFlow sees no GPU", remedy)
