"""`generic-trainer doctor`: this machine and what is installed on it, and how to get the rest."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from generic_trainer import __version__
from generic_trainer._core.keras import LEGACY_VARIABLE
from generic_trainer._core.machine import available_cpus, free_memory_bytes
from generic_trainer.cli._doctor_packages import (
    Observation,
    optional_packages,
    required_packages,
    run_python,
)
from generic_trainer.data import MEMORY_VARIABLE, default_budget_bytes
from generic_trainer.errors import ConfigurationError

_PYTHONS = ((3, 10), (3, 13))
_MIN_GLIBC_OF_CURRENT_STACK = (2, 39)
_TIMEOUT_S = 300.0
_ASK_TENSORFLOW = """
import json, tensorflow as tf
from generic_trainer._core.keras import keras_version
print(json.dumps({
    "keras": keras_version(),
    "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
             for gpu in tf.config.list_physical_devices("GPU")],
    "cuda": tf.test.is_built_with_cuda(),
}))
"""
_STYLES = {"ok": "green", "missing": "dim", "warn": "yellow", "fail": "bold red"}


def add_doctor(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, Keras mode and GPUs, what is missing and how to get it",
        description="Imports what GenericTrainer needs, each part in turn, in another process.",
    )
    parser.set_defaults(run=_doctor)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _doctor(options: argparse.Namespace) -> int:
    print("Importing TensorFlow, TFX and their parts ...", file=sys.stderr, flush=True)
    observations = list(examine())
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in observations], indent=2))
    else:
        _print(observations)
    return int(any(each.status == "fail" for each in observations))


def examine() -> Iterator[Observation]:
    """Yields what GenericTrainer needs, what is there of it, and what to do about the rest.

    Takes as long as TensorFlow and TFX take to import, in other processes than this one.
    """
    yield Observation("GenericTrainer", "ok", __version__)
    yield from _machine()
    yield from required_packages()
    yield from _keras_and_gpus()
    yield from optional_packages()


def _print(observations: Sequence[Observation]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # the doctor is for environments in which things are missing
        for each in observations:
            remedy = f"\n    → {each.remedy}" if each.remedy else ""
            print(f"{each.status.upper():7}  {each.subject}: {each.found}{remedy}")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("status", "subject"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold")
    for each in observations:
        found = Text(each.found)
        if each.remedy:
            found.append(f"\n→ {each.remedy}", style="cyan")
        status = Text(each.status.upper(), style=_STYLES[each.status])
        table.add_row(status, Text(each.subject), found)
    Console().print(table)


def _machine() -> Iterator[Observation]:
    """Yields findings about interpreter, C library, processors and memory."""
    yield _python()
    yield _glibc()
    yield Observation("processors", "ok", str(len(available_cpus())))
    yield _memory()


def _keras_and_gpus() -> Iterator[Observation]:
    """Yields what TensorFlow says of its Keras and its GPUs, asked in a process of its own."""
    try:
        done = run_python(_ASK_TENSORFLOW, timeout_s=_TIMEOUT_S)
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return  # whatever is wrong with TensorFlow, its import has shown
    yield _keras(answer["keras"])
    yield _gpus(answer["gpus"], answer["cuda"])


def _python() -> Observation:
    lowest, highest = _PYTHONS
    found = f"{platform.python_version()} at {sys.executable}"
    if lowest <= sys.version_info[:2] <= highest:
        return Observation("Python", "ok", found)
    remedy = "use Python 3.10, or 3.11 to 3.13 where glibc is 2.39 or newer"
    return Observation("Python", "fail", found, remedy)


def _glibc() -> Observation:
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    found = f"{library} {version}".strip() or "unknown"
    if library == "glibc" and numbers >= _MIN_GLIBC_OF_CURRENT_STACK:
        return Observation("C library", "ok", f"{found}: both stacks can be installed")
    newest = "TFX 1.16 is the newest that has binaries for it"
    return Observation("C library", "ok", f"{found}: {newest}")


def _memory() -> Observation:
    try:
        budget = default_budget_bytes()
    except ConfigurationError as error:
        return Observation("memory", "fail", str(error))
    found = (
        f"{free_memory_bytes() / 1e9:.1f} GB free; the reader keeps up to {budget / 1e9:.1f} GB of "
        f"columns in memory ({MEMORY_VARIABLE} changes that)"
    )
    return Observation("memory", "ok", found)


def _keras(version: str) -> Observation:
    variable = os.environ.get(LEGACY_VARIABLE)
    found = f"tf.keras is Keras {version}; {LEGACY_VARIABLE} is {variable or 'not set'}"
    if version.startswith("2."):
        return Observation("Keras", "ok", found)
    remedy = (
        f"set {LEGACY_VARIABLE}=1 for module files written for Keras 2, and for "
        "MultiWorkerMirroredStrategy, which Keras 3 cannot train under"
    )
    return Observation("Keras", "ok", found, remedy)


def _gpus(names: list[str], built_with_cuda: bool) -> Observation:
    if names:
        return Observation("GPUs", "ok", ", ".join(names))
    if shutil.which("nvidia-smi") is None:
        return Observation("GPUs", "ok", "none: training runs on processors")
    if not built_with_cuda:
        remedy = "pip install 'tensorflow[and-cuda]': this TensorFlow is built without CUDA"
    else:
        remedy = "pip install 'tensorflow[and-cuda]', and look at CUDA_VISIBLE_DEVICES"
    return Observation("GPUs", "warn", "nvidia-smi is there, but TensorFlow sees no GPU", remedy)
