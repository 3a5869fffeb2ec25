"""What is wrong with a `Distribution` is said at once, and it survives being sent."""

from __future__ import annotations

from typing import Any

import pytest

from generic_trainer import Distribution, launchers
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import RayOptions, TFJobOptions
from generic_trainer.launchers._distribution import tasks


def test_exported_names() -> None:
    assert launchers.__all__ == [
        "Distribution",
        "ExamplesFormat",
        "Failure",
        "Job",
        "Launcher",
        "RayOptions",
        "TFJobOptions",
        "TrainJobOptions",
        "TrainingRequest",
        "VertexOptions",
        "exit_code",
        "launch",
    ]
    assert all(getattr(launchers, name) is not None for name in launchers.__all__)


@pytest.mark.parametrize(
    "distribution",
    [
        Distribution(),
        Distribution(launcher="local", num_workers=2, env={"TF_USE_LEGACY_KERAS": "1"}),
        Distribution(launcher="ray", ray=RayOptions(address="auto"), heartbeat_s=None),
        Distribution(launcher="ray", num_workers=(2, 4), ray=RayOptions(resize_interval_s=5.0)),
        Distribution(
            launcher="tfjob", tfjob=TFJobOptions(image="a/b:1", volumes={"claim": "/mnt"})
        ),
    ],
)
def test_json_holds_all_of_it(distribution: Distribution) -> None:
    assert Distribution.from_json(distribution.to_json()) == distribution


def test_defaults_are_left_out_of_the_json() -> None:
    # A default that changes in a later release must not undo what is cached.
    assert Distribution(max_failures=3).to_json() == "{}"


@pytest.mark.parametrize("text", ["[1]", "nonsense", '{"workers": 2}', '{"ray": {"adress": ""}}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="what Distribution"):
        Distribution.from_json(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'{{"num_workers": {10**30}}}', "num_workers must be a whole number"),
        ('{"num_workers": 1e400}', "num_workers must be a whole number"),
        ('{"num_workers": 1.5}', "num_workers must be a whole number"),
        ('{"max_failures": NaN}', "max_failures must be a whole number"),
        ('{"timeout_s": Infinity}', "timeout_s must be a positive number or None, got inf"),
        ('{"memory_mb_per_worker": true}', "memory_mb_per_worker must be a positive number"),
        ('{"gpus_per_worker": false}', "gpus_per_worker must be a number of at least 0, got False"),
        ('{"preemption_grace_s": 1e300}', "preemption_grace_s must be a number"),
        ('{"env": {"A=B": "c"}}', "env must have names without '='"),
        ('{"env": {"A": "\\u0000"}}', "nothing with a zero"),
        ('{"workers": 2}', "Distribution has no field 'workers' (did you mean 'num_workers'?)"),
        ('{"num_workers": 1, "num_workers": 2}', "more than one value"),
        ('{"ray": 5}', "RayOptions must be a JSON object, not 5"),
        ('{"ray": {"adress": ""}}', "RayOptions has no field 'adress' (did you mean 'address'?)"),
        ('{"ray": {"address": 5}}', "ray.address must be a text or None"),
        ('{"ray": {"connect_timeout_s": "x"}}', "ray.connect_timeout_s must be a positive number"),
        ('{"ray": {"runtime_env": []}}', "ray.runtime_env must be a dict"),
        ('{"tfjob": {"image": 5}}', "tfjob.image must be a text"),
        ('{"tfjob": {"service_account": 5}}', "tfjob.service_account must be a text"),
        ('{"tfjob": {"keep_job": 5}}', "tfjob.keep_job must be True or False"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_json_from_outside_is_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Distribution.from_json(text)
    assert told in str(caught.value)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    distribution = Distribution.from_json('{"launcher": "local", "num_workers": 2.0}')
    assert len(tasks(distribution)) == 2


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Distribution(
            num_workers=0,
            launcher="slurm",  # type: ignore[arg-type]
            timeout_s=-1,
            max_failures=True,
            env={"TF_CONFIG": "{}"},
            ray=RayOptions(),
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "Distribution: 6 problems"
    for line, start in zip(
        lines[1:],
        ("launcher must", "num_workers must", "max_failures must", "timeout_s must", "env", "ray="),
        strict=True,
    ):
        assert start in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 2}, "num_workers=2 needs a launcher that starts workers"),
        ({"parameter_servers": 1}, "parameter_servers=1 needs a launcher"),
        ({"timeout_s": 5}, "timeout_s=5 needs a launcher"),
        ({"env": {"A": "b"}}, "launcher is 'in_process'"),
        ({"env": {"A": 1}, "launcher": "local"}, "env must be a dict of texts"),
        ({"launcher": "local", "ray": RayOptions()}, "ray=... is for launcher='ray'"),
        ({"launcher": "tfjob"}, "needs tfjob=TFJobOptions"),
        ({"launcher": "ray", "ray": {"address": "auto"}}, "ray must be RayOptions"),
        ({"require_gpu": True, "gpus_per_worker": 0}, "contradicts gpus_per_worker=0"),
        ({"launcher": "local", "gpus_per_worker": 0.5}, "whole number except on Ray"),
        ({"heartbeat_s": 0}, "heartbeat_s must be a positive number or None"),
        ({"num_workers": 1.5, "launcher": "local"}, "num_workers must be a whole number"),
        ({"num_workers": (0, 2), "launcher": "ray"}, "num_workers must be a whole number"),
        ({"num_workers": (1, 2, 3), "launcher": "ray"}, "num_workers must be a whole number"),
        ({"num_workers": (3, 2), "launcher": "ray"}, "the fewest and the most"),
        ({"num_workers": (1, 2), "launcher": "local"}, r"\(1, 2\) is for launcher='ray'"),
        (
            {"num_workers": (1, 2), "launcher": "ray", "parameter_servers": 1},
            "contradicts parameter_servers=1",
        ),
        ({"chief": 1, "launcher": "local"}, "chief must be True or False"),
    ],
)
def test_wrong_values_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Distribution(**arguments)


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
