"""Packages that GenericTrainer needs: whether they are there, and can be imported.

An import can fail in ways that no list of versions shows: a dependency that nobody asks for, a
binary for another processor, another protobuf. So each one is tried, in a process of its own
because a broken binary may take it down.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

# Distribution → module, in the order in which they need each other.
_REQUIRED = {
    "tensorflow": "tensorflow",
    "tf-keras": "tf_keras",
    "ml-metadata": "ml_metadata",
    "apache-beam": "apache_beam",
    "tfx-bsl": "tfx_bsl.public.tfxio",
    "tensorflow-transform": "tensorflow_transform",
    "tensorflow-model-analysis": "tensorflow_model_analysis",
    "tfx": "tfx.v1",
    "tensorflow-estimator": "generic_trainer.estimator",
}
# What fails without saying so: missing module → the distribution that has it.
_UNASKED = {"dill": "dill", "tensorboard": "tensorboard", "nbformat": "nbformat"}
# Distribution → (extra, what it is for).
_OPTIONAL = {
    "ray": ("ray", "training on a Ray cluster"),
    "kubernetes": ("kubernetes", "training as a TFJob or a TrainJob of Kubeflow"),
    "google-cloud-aiplatform": ("vertex", "training as a custom job of Vertex AI"),
    "kfp": ("kfp", "compiling pipelines for Kubeflow and Vertex AI"),
    "nbformat": ("notebook", "InteractiveContext in notebooks"),
    "tf-slim": ("slim", "tf.contrib's layers"),
    "scikit-learn": ("examples", "the data of the example module files"),
}
_TIMEOUT_S = 600.0
_TRY = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for module in sys.argv[1:]:
    print(json.dumps({"module": module}), file=sys.__stderr__, flush=True)
    try:
        importlib.import_module(module)
    except BaseException as error:
        outcome = {"module": module, "error": f"{type(error).__name__}: {error}",
                   "missing": getattr(error, "name", None) or ""}
        print(json.dumps(outcome), file=sys.__stderr__, flush=True)
print('{"module": ""}', file=sys.__stderr__, flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Observation:
    """One thing that the doctor has looked at.

    Attributes:
        subject: what was looked at.
        status: `"ok"`; `"missing"` for what is optional; `"warn"` for what works, but not as well
            as it could; `"fail"` for what GenericTrainer cannot do without.
        found: what was found.
        remedy: what to do about it.
    """

    subject: str
    status: Literal["ok", "missing", "warn", "fail"]
    found: str
    remedy: str = ""


def required_packages() -> Iterator[Observation]:
    """Yields an observation of each package that GenericTrainer needs."""
    errors = import_errors(tuple(_REQUIRED.values()))
    for distribution, module in _REQUIRED.items():
        version = _version(distribution)
        if version is None:
            remedy = (
                f"pip install {distribution}, or all at once: GenericTrainer again with what it "
                "asks for, by pip install and its wheel, its checkout or its repository's URL"
            )
            yield Observation(distribution, "fail", "not installed", remedy)
        elif module in errors:
            message, missing = errors[module]
            yield Observation(
                distribution, "fail", f"{version}, import fails: {message}", _cure(missing)
            )
        else:
            yield Observation(distribution, "ok", version)


def optional_packages() -> Iterator[Observation]:
    """Yields an observation of each package that some uses need."""
    for distribution, (extra, purpose) in _OPTIONAL.items():
        version = _version(distribution)
        if version is not None:
            yield Observation(distribution, "ok", f"{version}, for {purpose}")
        else:
            remedy = f"pip install {_requirements(extra) or distribution}"
            yield Observation(distribution, "missing", f"not installed: for {purpose}", remedy)


def _requirements(extra: str) -> str:
    """Returns what an extra of this package asks for, as words for pip; "" where nobody knows.

    The package's own name would be no help where it came from a checkout or a wheel.
    """
    try:
        lines = importlib.metadata.requires("generic-trainer") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    parts = (line.replace("'", '"').partition(";") for line in lines)
    wanted = f'extra == "{extra}"'
    return " ".join(f"'{what.strip()}'" for what, _, marker in parts if marker.strip() == wanted)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_errors(modules: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Returns module → (what its import raised, the module that it missed)."""
    errors: dict[str, tuple[str, str]] = {}
    while modules:
        try:
            done = run_python(_TRY, *modules, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {**errors, modules[0]: (f"no end within {_TIMEOUT_S:g} s", "")}
        lines = [line for line in done.stderr.splitlines() if line.startswith('{"module"')]
        outcomes = [json.loads(line) for line in lines]
        tried = [each["module"] for each in outcomes if "error" not in each]
        errors |= {e["module"]: (e["error"], e["missing"]) for e in outcomes if "error" in e}
        if not tried or tried[-1] == "":
            break
        errors[tried[-1]] = (f"the process ended with {done.returncode}", "")
        modules = modules[len(tried) :]
    return errors


def run_python(code: str, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, in which TensorFlow logs nothing.

    Raises:
        subprocess.TimeoutExpired: it has not ended in time.
    """
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def _cure(missing: str) -> str:
    distribution = _UNASKED.get(missing.partition(".")[0])
    if distribution:
        return f"pip install {distribution} (the package uses it without asking for it)"
    return "pip install --force-reinstall the package in a fresh environment, with constraints/"
