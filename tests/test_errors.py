"""Errors: their fields, and their way to another process."""

import pickle

import pytest

from generic_trainer import errors
from generic_trainer.validation import Result, ValidationReport

ALL = [
    kind
    for kind in map(errors.__dict__.__getitem__, errors.__all__)
    if isinstance(kind, type) and issubclass(kind, errors.GenericTrainerError)
]


def test_a_notebook_shows_the_message_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.user_ns["kind"] = errors.TrainingError
    assert not shell.run_cell("def f():\n    raise kind('run_fn failed')\nf()").success
    shown = capsys.readouterr().out
    assert shown.strip() == "TrainingError: run_fn failed"


@pytest.mark.parametrize("kind", ALL)
def test_error_is_the_same_after_the_way_to_another_process(
    kind: type[errors.GenericTrainerError],
) -> None:
    error = kind("no such thing")
    assert error.details == {} and not any(getattr(error, name) for name in kind.fields)
    details = {name: f"the {name}" for name in kind.fields}
    there = pickle.loads(pickle.dumps(kind("no such thing", **details)))
    assert type(there) is kind
    assert str(there) == "no such thing"
    assert there.details == details


def test_report_of_a_failed_model_is_at_hand() -> None:
    report = ValidationReport("model", (Result("loads", "fail", "it does not", "mend it"),))
    error = pickle.loads(pickle.dumps(errors.ModelValidationError("failed", report=report)))
    assert [failure.name for failure in error.report.failures] == ["loads"]


def test_a_field_that_the_class_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="DataError has no field 'worker'"):
        errors.DataError("broken", worker="chief")


def test_problems_are_listed_and_kept_one_by_one() -> None:
    with pytest.raises(errors.ConfigurationError, match="Distribution: 2 problems") as caught:
        errors.raise_problems(
            errors.ConfigurationError, "Distribution", ["no workers", "no memory"], path="a.yaml"
        )
    assert caught.value.problems == ("no workers", "no memory")
    assert caught.value.path == "a.yaml"
    assert str(caught.value).splitlines()[1:] == ["  1. no workers", "  2. no memory"]
