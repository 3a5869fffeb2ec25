"""Who is the chief."""

import json
from typing import Any

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.training import is_chief


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, True),
        ({"cluster": {"worker": []}}, True),
        ({"task": {"type": "worker", "index": 3}}, True),
        ({"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}, True),
        ({"cluster": {"master": ["a"]}, "task": {"type": "master", "index": 0}}, True),
        (
            {"cluster": {"master": ["a"], "worker": ["b"]}, "task": {"type": "worker", "index": 0}},
            False,
        ),
        ({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}}, True),
        ({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}, False),
        ({"cluster": {"worker": ["a"], "ps": ["b"]}, "task": {"type": "ps", "index": 0}}, False),
        ({"cluster": {"chief": ["a"]}, "task": {"type": "evaluator", "index": 0}}, False),
        # Some launchers write the index as a string.
        ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": "0"}}, True),
    ],
)
def test_is_chief(config: Any, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert is_chief() is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a JSON object, but got '{' .*line 1 column 2"),
        ("[]", r"must be a JSON object, but got '\[\]' \(it holds"),
        ('{"cluster": {"worker": ["a"]}}', 'must also name this process as "task"'),
        ('{"cluster": {"worker": [1]}}', 'expected "cluster" to be a JSON object of lists'),
        (
            '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 2}}',
            "is worker 2, but the tasks of its cluster are worker 0, worker 1",
        ),
        (
            '{"cluster": {"worker": ["a"]}, "task": {"type": "chief", "index": 0}}',
            "is chief, but the tasks of its cluster are worker 0",
        ),
    ],
)
def test_unreadable_tf_config(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigurationError, match=message):
        is_chief()
