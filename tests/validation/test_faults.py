"""Faults of the catalogue are found, and its good models pass; the table measures all of them."""

from pathlib import Path

import pytest

from tests.validation.catalogue.all_good import all_good
from tests.validation.catalogue.rows import FAULTS
from tests.validation.catalogue.sources import all_faults
from tests.validation.conftest import Check
from tests.validation.test_broken_models import find

EVERY = all_faults()
GOOD = all_good()
# One for each kind of finding that no other default test has.
BY_DEFAULT = (
    "vocabulary_is_a_pointer_of_git_lfs", "two_inputs_before_a_bulk_inferrer",
    "inputs_lost_their_names", "handle_as_output", "input_declared_with_another_rank",
    "output_that_is_an_input", "scores_of_double_precision", "reads_from_a_queue",
    "layer_of_cudnn", "even_numbers_of_rows_alone", "first_of_an_empty_list",
    "another_number_of_values_than_the_schema", "warm_up_that_classifies_what_predicts",
)  # fmt: skip
OLDER = "fingerprint_of_tensorflow_2_12"
GOOD_BY_DEFAULT = ("nan_in_unread_variables", "graph_for_training_beside_it", OLDER)
# They end by a limit of time, or start an evaluation.
SLOWEST = {"loop_that_never_ends", "asks_a_data_service", "calls_another_server"}
CAMPAIGN = pytest.mark.campaign("validation")
SAMPLE = [
    n for n in FAULTS if n not in {*BY_DEFAULT, *SLOWEST} and "eval_re" not in FAULTS[n].check
]
GOOD_SAMPLE = [name for name in GOOD if name not in GOOD_BY_DEFAULT]


def test_every_fault_says_where_the_idea_comes_from() -> None:
    assert len(EVERY) >= 300
    assert len(GOOD) >= 150
    assert not EVERY.keys() & GOOD.keys()
    for name, fault in EVERY.items():
        assert fault.source and fault.breaks, name


def test_faults_that_nobody_can_know_are_few() -> None:
    assert sum(bool(fault.missed) for fault in EVERY.values()) < 10


@pytest.mark.parametrize(
    "name", [*BY_DEFAULT, *(pytest.param(n, marks=CAMPAIGN) for n in SAMPLE[::7])]
)
def test_is_found(name: str, check: Check, good_model: Path, tmp_path: Path) -> None:
    find(FAULTS[name], check, good_model, tmp_path)


@pytest.mark.parametrize(
    "name", [*GOOD_BY_DEFAULT, *(pytest.param(n, marks=CAMPAIGN) for n in GOOD_SAMPLE[::14])]
)
def test_passes(name: str, check: Check, tmp_path: Path) -> None:
    make, contract = GOOD[name]
    make(tmp_path / "model")
    for each in (contract, None):
        report = check(tmp_path / "model", each)
        assert report.passed, report.summary()
