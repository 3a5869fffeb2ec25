"""One training step of a pipeline, timed: packing as at compile time, then the executor."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Sample", "medians", "run_step", "take_turns"]


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run of one component; all in seconds."""

    packing: float
    executor: float

    @property
    def total(self) -> float:
        return self.packing + self.executor


def run_step(
    make: Callable[[], Any], inputs: Mapping[str, Any], root: Path
) -> tuple[Sample, dict[str, list[Any]]]:
    """Packs the user's code and runs the executor; returns the time and the output artifacts.

    Args:
        make: constructs the component.
        inputs: of the executor, name → artifact.
        root: where the code is packed and the outputs go.
    """
    from benchmarks import _artifacts

    started = time.perf_counter()
    component = make()
    component._resolve_pip_dependencies(str(root))
    packed = time.perf_counter()
    outputs = _artifacts.output_artifacts(root)
    properties = {k: v for k, v in component.exec_properties.items() if v is not None}
    executor = component.executor_spec.executor_class()
    executor.Do({key: [artifact] for key, artifact in inputs.items()}, outputs, properties)
    return Sample(packed - started, time.perf_counter() - packed), outputs


def take_turns(
    names: Sequence[str], runs: int, run: Callable[[str, int], Sample]
) -> dict[str, list[Sample]]:
    """Returns name → samples of several ways that took turns.

    Args:
        names: of the ways.
        runs: of each, beside a first one that warms up imports and caches.
        run: runs a way, given its name and the number of the run.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(runs + 1):
        for name, taken in samples.items():
            sample = run(name, number)
            if number > 0:
                taken.append(sample)
    return samples


def medians(taken: Sequence[Sample]) -> tuple[float, float, float]:
    """Returns the medians of packing, executor and total."""
    packing = statistics.median(sample.packing for sample in taken)
    executor = statistics.median(sample.executor for sample in taken)
    return packing, executor, statistics.median(sample.total for sample in taken)
