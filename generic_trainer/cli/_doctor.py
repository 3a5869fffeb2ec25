"""`generic-trainer doctor`: versions, hardware and missing packages of this environment.

An import can fail in ways that no list of versions shows: an undeclared dependency, a binary for
another processor, another protobuf. So each package is imported, in another process because a
broken binary may crash it.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from typing import Any, Literal

from generic_trainer import __version__
from generic_trainer._core.keras import LEGACY_VARIABLE, keras_version
from generic_trainer.cli._options import add_command
from generic_trainer.errors import ConfigurationError

# Distribution → module, in the order in which they need each other.
_REQUIRED = {
    "psutil": "psutil",
    "pydantic": "pydantic",
    "tensorflow": "tensorflow",
    "tf-keras": "tf_keras",
    "tensorflow-metadata": "tensorflow_metadata.proto.v0.schema_pb2",
    "tensorflow-estimator": "generic_trainer.estimator",
}
_OF_TFX = {
    "ml-metadata": "ml_metadata",
    "apache-beam": "apache_beam",
    "tfx-bsl": "tfx_bsl.public.tfxio",
    "tensorflow-transform": "tensorflow_transform",
    "tensorflow-model-analysis": "tensorflow_model_analysis",
    "tfx": "tfx.v1",
}
_UNDECLARED = ("dill", "nbformat", "tensorboard")  # dependencies that no package declares
_OF_PIPELINES = "the component in TFX pipelines, Transform and the Evaluator's rehearsal"
_JOB_OF_VERTEX = "training as a custom job of Vertex AI"
# Distribution → (module, extra, purpose).
_OPTIONAL = {
    "tfx": ("tfx.v1", "tfx", _OF_PIPELINES),
    "ray": ("ray", "ray", "training on a Ray cluster"),
    "kubernetes": ("kubernetes", "kubernetes", "training as a TFJob or a TrainJob of Kubeflow"),
    "google-cloud-aiplatform": ("google.cloud.aiplatform", "vertex", _JOB_OF_VERTEX),
    "kfp": ("kfp", "kfp", "compiling pipelines for Kubeflow and Vertex AI"),
    "nbformat": ("nbformat", "notebook", "InteractiveContext in notebooks"),
    "model-signing": ("model_signing", "signing", "signed models"),
    "tf-slim": ("tf_slim", "slim", "tf.contrib's layers"),
    "scikit-learn": ("sklearn", "examples", "the data of the example module files"),
}


@dataclasses.dataclass(frozen=True)
class Observation:
    """A finding of the doctor.

    Attributes:
        subject: a package or a part of the machine.
        status: `"ok"`; `"missing"` for an optional package; `"warn"` if it works, but could work
            better; `"fail"` if GenericTrainer cannot work.
        found: its version or state.
        remedy: how to install or repair it.
    """

    subject: str
    status: Literal["ok", "missing", "warn", "fail"]
    found: str
    remedy: str = ""


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _doctor,
        "Show versions, Keras mode, GPUs, and missing packages with their remedies",
        "Imports each package that GenericTrainer needs, in another process.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _doctor(options: argparse.Namespace) -> int:
    print("Importing TensorFlow and what else is needed ...", file=sys.stderr, flush=True)
    observations = list(examine())
    if options.json:
        print(
            json.dumps([dataclasses.asdict(observation) for observation in observations], indent=2)
        )
    else:
        for observation in observations:
            remedy = f"\n{'':9}→ {observation.remedy}" if observation.remedy else ""
            label = "-" if observation.status == "missing" else observation.status.upper()
            print(f"{label:7}  {observation.subject}: {observation.found}{remedy}")
    return int(any(observation.status == "fail" for observation in observations))


def examine() -> Iterator[Observation]:
    """Yields the state of the machine and of each package, and remedies.

    Takes as long as TensorFlow, TFX and the optional packages take to import, if installed.
    """
    yield Observation("GenericTrainer", "ok", __version__)
    yield Observation("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Observation("C library", "ok", " ".join(platform.libc_ver()))
    yield from _resources()
    yield from required_packages()
    with contextlib.suppress(Exception):  # the import of TensorFlow has shown its error
        keras, gpus, built_with_cuda = _other_process().submit(_inspect_tensorflow).result()
        yield _keras(keras)
        yield _gpus(gpus, built_with_cuda)
        if gpus:
            yield _xla(_other_process().submit(_xla_error).result())
    yield from optional_packages()


def _resources() -> Iterator[Observation]:
    try:
        from generic_trainer._core.machine import available_cpus, free_memory_bytes
        from generic_trainer.data import MEMORY_VARIABLE, default_budget_bytes

        yield Observation("processors", "ok", str(len(available_cpus())))
        free = (
            f"{free_memory_bytes() / 1e9:.1f} GB free; the reader keeps up to "
            f"{default_budget_bytes() / 1e9:.1f} GB of columns in memory ({MEMORY_VARIABLE} "
            "changes that)"
        )
        yield Observation("memory", "ok", free)
    except (ConfigurationError, ModuleNotFoundError) as error:
        yield Observation("memory", "fail", str(error))


def _keras(version: str) -> Observation:
    variable = os.environ.get(LEGACY_VARIABLE)
    setting = f"tf.keras is Keras {version}; {LEGACY_VARIABLE} is {variable or 'not set'}"
    remedy = (
        f"set {LEGACY_VARIABLE}=1 for module files written for Keras 2, and for "
        "MultiWorkerMirroredStrategy, which Keras 3 cannot train under"
    )
    return Observation("Keras", "ok", setting, "" if version.startswith("2.") else remedy)


def _gpus(names: list[str], built_with_cuda: bool) -> Observation:
    if names:
        return Observation("GPUs", "ok", ", ".join(names))
    if shutil.which("nvidia-smi") is None:
        return Observation("GPUs", "ok", "none: training runs on processors")
    reason = ", and check CUDA_VISIBLE_DEVICES" if built_with_cuda else ": this one lacks CUDA"
    remedy = f"pip install 'tensorflow[and-cuda]'{reason}"
    return Observation("GPUs", "warn", "nvidia-smi exists, but TensorFlow sees no GPU", remedy)


def _xla(error: str) -> Observation:
    if not error:
        return Observation("XLA", "ok", "compiles for the GPU")
    remedy = "set XLA_FLAGS=--xla_gpu_cuda_data_dir=DIR, where DIR has nvvm/libdevice"
    return Observation("XLA", "warn", f"cannot compile for the GPU: {error}", remedy)


def required_packages() -> Iterator[Observation]:
    """Yields an observation of each package that GenericTrainer, and TFX if it is there, needs."""
    required = _REQUIRED | (_OF_TFX if _version("tfx") else {})
    errors = import_errors(*required.values())
    for distribution, module in required.items():
        version = _version(distribution)
        if version is None:
            remedy = f"pip install {distribution}, or GenericTrainer again, for all of them"
            yield Observation(distribution, "fail", "not installed", remedy)
        elif module in errors:
            message, missing = errors[module]
            remedy = "pip install --force-reinstall it in a fresh environment, with constraints/"
            if missing in _UNDECLARED:
                remedy = f"pip install {missing} (the package does not declare this dependency)"
            problem = f"{version}, import fails: {message}"
            yield Observation(distribution, "fail", problem, remedy)
        else:
            yield Observation(distribution, "ok", version)


def optional_packages() -> Iterator[Observation]:
    """Yields an observation of each package that some uses need."""
    versions = {name: _version(name) for name in _OPTIONAL}
    present = {name for name, version in versions.items() if version is not None} - _OF_TFX.keys()
    errors = import_errors(*(module for name, (module, *_) in _OPTIONAL.items() if name in present))
    for distribution, (module, extra, purpose) in _OPTIONAL.items():
        version = versions[distribution]
        if version is not None and distribution in _OF_TFX:
            continue  # it is among those that are needed then
        if module in errors:
            problem = f"{version}, for {purpose}, import fails: {errors[module][0]}"
            remedy = f"pip install --force-reinstall {_requirements(extra) or distribution}"
            yield Observation(distribution, "warn", problem, remedy)
        elif version is not None:
            yield Observation(distribution, "ok", f"{version}, for {purpose}")
        else:
            remedy = f"pip install {_requirements(extra) or distribution}"
            if distribution == "tfx" and not _has_wheels_of_tfx():
                remedy = (
                    "use Python 3.10, or a system with glibc 2.39 or newer, such as Debian 13 or "
                    "Ubuntu 24.04: TFX has no wheels for this Python and this C library"
                )
            yield Observation(distribution, "missing", f"not installed: for {purpose}", remedy)


def _has_wheels_of_tfx() -> bool:
    name, version = platform.libc_ver()
    is_new = name == "glibc" and tuple(map(int, version.split("."))) >= (2, 39)
    return is_new or platform.python_version_tuple()[:2] == ("3", "10")


def _requirements(extra: str) -> str:
    """Returns the requirements of an extra for this Python, for pip; "" if they are unknown.

    The package's own name would not help pip if it was installed from a checkout or a wheel.
    """
    try:
        from packaging.requirements import Requirement  # it comes with TensorFlow

        known = list(map(Requirement, metadata.requires("generic-trainer") or []))
    except (ImportError, metadata.PackageNotFoundError):
        return ""
    names = [
        str(requirement).partition(";")[0].strip()
        for requirement in known
        if requirement.marker
        and requirement.marker.evaluate({"extra": extra})
        and requirement.name != "generic-trainer"
    ]
    return " ".join(map(shlex.quote, names))


def _version(distribution: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None


def import_errors(*modules: str) -> dict[str, tuple[str, str]]:
    """Returns module → (error of its import, module that was not found) for failing imports."""
    errors: dict[str, tuple[str, str]] = {}
    process = _other_process()
    for module in modules:
        try:
            error = process.submit(_import_error, module).result()
        except BrokenProcessPool:
            error = ("the process crashed", "")
            process = _other_process()
        if error:
            errors[module] = error
    return errors


def _other_process() -> ProcessPoolExecutor:
    """Returns a process whose output is discarded."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_discard_output)


def _discard_output() -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _import_error(module: str) -> tuple[str, str] | None:
    try:
        importlib.import_module(module)
    except BaseException as error:
        missing = getattr(error, "name", None) or ""
        return f"{type(error).__name__}: {error}", missing.partition(".")[0]
    return None


def _xla_error() -> str:
    """Returns why XLA cannot compile a function for the GPU; or ""."""
    import tensorflow as tf

    from generic_trainer._core.machine import find_cuda_of_wheels

    find_cuda_of_wheels()
    try:
        with tf.device("GPU:0"):
            tf.function(tf.math.erf, jit_compile=True)(tf.constant([0.5]))
    except tf.errors.OpError as error:
        return error.message.splitlines()[0]
    return ""


def _inspect_tensorflow() -> tuple[str, list[str], bool]:
    """Returns the version of `tf.keras`, names of GPUs, and whether TensorFlow can use CUDA."""
    import tensorflow as tf

    details = tf.config.experimental.get_device_details
    gpus = [
        details(gpu).get("device_name", gpu.name) for gpu in tf.config.list_physical_devices("GPU")
    ]
    return keras_version(), gpus, tf.test.is_built_with_cuda()
