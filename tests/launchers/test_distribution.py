"""A `Distribution` reports all its problems at once, and survives JSON."""

import dataclasses
import inspect
from typing import Any

import pytest

from generic_trainer import Distribution
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import RayOptions, TFJobOptions
from generic_trainer.launchers._distribution import tasks


@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(),
        Distribution(launcher="local", num_workers=2, env={"TF_USE_LEGACY_KERAS": "1"}),
        Distribution(launcher="ray", ray=RayOptions(address="auto"), heartbeat_s=None),
        Distribution(launcher="ray", num_workers=(2, 4)),
        Distribution(launcher="tfjob", tfjob=TFJobOptions("a/b:1", volumes={"claim": "/mnt"})),
    ],
)
def test_json_holds_all_of_it(distribution: Distribution) -> None:
    assert Distribution.from_json(distribution.to_json()) == distribution


def test_defaults_are_left_out_of_the_json() -> None:
    # A default that changes in a later release must not undo what is cached.
    assert Distribution(max_failures=3).to_json() == "{}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"num_workers": {10**30}}}', "num_workers must be a whole number from 1 to 10000, or"),
        ('{"max_failures": NaN}', "max_failures must be a whole number"),
        ('{"preemption_grace_s": 1e300}', "preemption_grace_s must be less than or equal to"),
        ('{"env": {"A=B": "c"}}', "env must have names without '='"),
        ('{"env": {"A": "\\u0000"}}', "no NUL characters"),
        ('{"ray": {"connect_timeout_s": "x"}}', "ray.connect_timeout_s must be a number"),
        ('{"ray": {"runtime_env": []}}', "ray.runtime_env must be a dict"),
        ('{"tfjob": {}}', "tfjob.image is required"),
        ('{"tfjob": {"image": "i", "volumes": {"c": "p"}}}', "volumes.c must be an absolute path"),
    ],
)
def test_wrong_json_is_refused_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Distribution.from_json(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("number", ["2.0", "[1.0, 2]"])
def test_a_whole_number_may_be_written_with_a_point(number: str) -> None:
    distribution = Distribution.from_json(f'{{"launcher": "ray", "num_workers": {number}}}')
    assert len(tasks(distribution)) == 2


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Distribution(
            num_workers=0,
            launcher="slurm",
            timeout_s=-1,
            max_failures=True,
            env={"TF_CONFIG": "{}"},
            workers=1,  # type: ignore[call-arg]
        )
    starts = ("num_workers", "launcher", "max_failures", "timeout_s", "env", "Distribution has no")
    for problem, start in zip(caught.value.problems, starts, strict=True):
        assert problem.startswith(start)
    with pytest.raises(ConfigurationError, match="3 problems"):
        Distribution(num_workers=2, parameter_servers=1, ray=RayOptions())


FEWEST_AND_MOST = {"num_workers": (1, 2), "launcher": "ray"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 2}, "num_workers=2 needs a launcher that starts workers"),
        ({"timeout_s": 5}, "timeout_s=5 needs a launcher"),
        ({"env": {"A": "b"}}, "launcher is 'in_process'"),
        ({"env": {"A": 1}, "launcher": "local"}, "env.A must be a string"),
        ({"launcher": "local", "ray": RayOptions()}, "ray=... is for launcher='ray'"),
        ({"launcher": "tfjob"}, r"needs tfjob=TFJobOptions\(image=\.\.\.\)"),
        ({"launcher": "ray", "ray": {"address": "auto"}}, "ray must be RayOptions"),
        ({"require_gpu": True, "gpus_per_worker": 0}, "contradicts gpus_per_worker=0"),
        ({"launcher": "local", "gpus_per_worker": 0.5}, "whole number except on Ray"),
        ({"heartbeat_s": 0}, "heartbeat_s must be greater than 0"),
        ({"num_workers": (1, 2, 3), "launcher": "ray"}, "num_workers must be a whole number"),
        ({"num_workers": (3, 2), "launcher": "ray"}, "the fewest and the most"),
        ({"num_workers": (1, 2), "launcher": "local"}, r"\(1, 2\) is for launcher='ray'"),
        ({**FEWEST_AND_MOST, "parameter_servers": 1}, "contradicts parameter_servers=1"),
        ({"chief": 1, "launcher": "local"}, "chief must be True or False"),
    ],
)
def test_wrong_values_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Distribution(**arguments)


def test_options_are_given_by_position_and_stay_as_they_are() -> None:
    assert RayOptions("auto", 5) == RayOptions(address="auto", connect_timeout_s=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Distribution().num_workers = 2  # type: ignore[misc]
    first = [*inspect.signature(Distribution).parameters][:4]
    assert first == ["num_workers", "parameter_servers", "chief", "launcher"]


@pytest.mark.parametrize(
    ("chief", "names"),
    [(False, ["worker 0", "worker 1", "worker 2"]), (True, ["chief", "worker 0", "worker 1"])],
)
def test_a_chief_that_is_asked_for_is_one_of_the_workers(chief: bool, names: list[str]) -> None:
    everyone = tasks(Distribution(launcher="local", num_workers=3, chief=chief))
    assert [task.name for task in everyone] == names


def test_parameter_servers_take_orders_from_a_chief_that_trains_nothing() -> None:
    distribution = Distribution(launcher="local", num_workers=2, parameter_servers=1)
    everyone = tasks(distribution)
    assert [task.name for task in everyone if task.is_server] == ["worker 0", "worker 1", "ps 0"]
    assert len(everyone) == distribution.num_processes == 4
