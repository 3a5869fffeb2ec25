"""Options of pytest with which the contract suite runs against somebody's own cluster::

pytest tests/launchers --engine tfjob --kubeconfig ~/.kube/config --root /pipelines/contract \
    --engine-options '{"image": "registry/trainer:7", "volumes": {"pipelines": "/pipelines"}}'

Without options an engine that needs a service gets a stand-in for it.
"""

import contextlib
import importlib.metadata
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.texts import parse_json
from generic_trainer.launchers import Distribution
from generic_trainer.launchers._registry import GROUP, find_launcher

# Workers of these train in the children that those of `local` are, and take up to half a minute to
# start: tried is what goes over the network, a cluster, and parameter servers. What jobs have in
# common is tried with TFJobs. `tests/launchers/kubernetes`, `ray` and `vertex` have more, such as
# workers of Ray that are lost and parameter servers in pods.
_BATCH = "batch"  # `tests.launchers.batch` imports TensorFlow: 6 s more before any test begins
_FEW = ("ray", "tfjob", "trainjob", "vertex", _BATCH)
# With those that other distributions have installed here, which run if they are asked for.
SLOW_ENGINES = (*_FEW, *(entry.name for entry in importlib.metadata.entry_points(group=GROUP)))
_TRIED = [
    *(
        f"test_run_that_ends_well_keeps_to_the_rules[{name}-two workers]"
        for name in ("trainjob", "vertex")  # that of the others is the end of what they replace
    ),
    *(
        f"test_values_arrive_as_they_are_and_all_kinds_of_output_are_kept[{name}]"
        for name in ("ray", "tfjob")
    ),
    "test_error_of_a_worker_is_the_error_of_the_run[tfjob-two workers]",
    "test_lost_worker_is_replaced[ray-parameter servers]",
    "test_lost_worker_is_replaced[tfjob-two workers]",
    f"test_lost_worker_is_replaced[{_BATCH}-two workers]",
]

__all__ = [
    "SLOW_ENGINES",
    "add_options",
    "deselect",
    "field_of",
    "is_elsewhere",
    "options_of",
    "shared_folder",
]


def add_options(parser: pytest.Parser) -> None:
    """Adds the options to those of pytest."""
    group = parser.getgroup("engines", "the contract suite of launchers, against a cluster")
    group.addoption(
        "--engine", choices=["in_process", "local", *SLOW_ENGINES], help="this one alone"
    )
    group.addoption("--engine-options", metavar="JSON", help="of its class, such as TFJobOptions")
    group.addoption("--kubeconfig", metavar="FILE", help="of the cluster of tfjob and trainjob")
    group.addoption(
        "--root", metavar="DIR", help="a folder that the workers see under the same path"
    )


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the contract suite of the engine that is asked for, if one is.

    Where none is, engines that have the better part in common are tried with a few runs each.
    """
    engine, options = config.getoption("--engine"), config.getoption("--engine-options")
    if (options and not engine) or (config.getoption("--kubeconfig") and not options):
        raise pytest.UsageError(
            "against a cluster give --engine and --engine-options, with the image for example: "
            "without the latter the engine runs against its stand-in"
        )

    def is_asked_for(item: pytest.Item) -> bool:
        launcher = getattr(item, "callspec", None) and item.callspec.params.get("launcher")
        if engine is None:
            return launcher not in SLOW_ENGINES or item.name in _TRIED
        return bool(launcher == engine)

    config.hook.pytest_deselected(items=[item for item in items if not is_asked_for(item)])
    items[:] = [item for item in items if is_asked_for(item)]


def is_elsewhere(config: pytest.Config) -> bool:
    """Returns whether the workers run where this process cannot look."""
    return config.getoption("--engine-options") is not None


@contextlib.contextmanager
def options_of(config: pytest.Config, engine: str) -> Iterator[Any]:
    """Yields the options of the engine, for somebody's own cluster."""
    values = parse_json(config.getoption("--engine-options"))
    with pytest.MonkeyPatch.context() as patch:
        if config.getoption("--kubeconfig"):
            path = os.path.expanduser(config.getoption("--kubeconfig"))
            patch.setenv("KUBECONFIG", path)
        yield find_launcher(engine).options(**values) if field_of(engine) == engine else values


def field_of(engine: str) -> str:
    """Returns the field of a distribution that has the options of an engine."""
    return engine if hasattr(Distribution, engine) else "launcher_options"


def shared_folder(config: pytest.Config, otherwise: Path) -> Path:
    """Returns an empty folder that the workers see as well."""
    root = config.getoption("--root")
    if root is None:
        return otherwise
    folder = Path(root) / uuid.uuid4().hex[:10]
    folder.mkdir(parents=True)
    return folder
