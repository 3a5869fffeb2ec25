"""The names that trial files import, and that they cost nothing before they are used."""

import inspect
from pathlib import Path

import pytest

from tests.house import run_python

# Names and their arguments, in the order of the originals; what comes after them is ours.
SIGNATURES = Path(__file__).with_name("signatures.txt").read_text().splitlines()


@pytest.mark.parametrize("signature", SIGNATURES)
def test_arguments_are_those_of_the_originals(signature):
    name, _, expected = signature.removesuffix(")").partition("(")
    found = __import__("generic_trainer.trials", fromlist=["*"])
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(expected.split(", "))] == expected.split(", ")


def test_importing_what_all_apis_share_does_not_import_tensorflow():
    rooms = ["", ".trials", ".trials.errors", ".trials.experimental", ".trials.native"]
    packages = ", ".join(f"generic_trainer{room}" for room in rooms)
    run_python("-c", f"import sys, {packages}; sys.exit('tensorflow' in sys.modules)")


def test_the_core_api_is_a_name_for_annotations_alone() -> None:
    from generic_trainer import trials

    assert trials.core.Context is not None
    with pytest.raises(
        AttributeError, match=r"det\.core\.init: .* trial classes of 0\.12 and 0\.13"
    ):
        trials.core.init()
