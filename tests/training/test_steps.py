from __future__ import annotations

from pathlib import Path

import pytest

from generic_trainer import training
from generic_trainer.errors import ConfigurationError
from tests.data.reading import numbered, write_files


@pytest.mark.parametrize(
    ("epochs", "batch_size", "num_examples", "steps"),
    [(1, 10, 100, 10), (1, 10, 101, 11), (3, 10, 101, 31), (2, 256, 5, 1)],
)
def test_epochs_follow_without_a_gap(
    epochs: int, batch_size: int, num_examples: int, steps: int
) -> None:
    assert training.steps_for(epochs, batch_size, num_examples=num_examples) == steps


def test_examples_are_counted_where_their_number_is_unknown(tmp_path: Path) -> None:
    pattern = write_files(tmp_path, [numbered(0, 7), numbered(7, 12)])
    assert training.steps_for(2, 10, files=[pattern]) == 3


def test_wrong_numbers() -> None:
    with pytest.raises(ConfigurationError, match="epochs: expected at least 1, found 0"):
        training.steps_for(0, 10, num_examples=5)
    with pytest.raises(ConfigurationError, match="batch_size: expected at least 1, found -1"):
        training.steps_for(1, -1, num_examples=5)
    with pytest.raises(ConfigurationError, match="exactly one of num_examples and files"):
        training.steps_for(1, 10)
    with pytest.raises(ConfigurationError, match="num_examples: expected at least 1, found 0"):
        training.steps_for(1, 10, num_examples=0)
