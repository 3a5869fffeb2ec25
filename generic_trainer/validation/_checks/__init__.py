"""The checks by subject, which register themselves, and those that an export gets."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from generic_trainer.validation._check import CHECKS, Check, Format, Status, all_checks
from generic_trainer.validation._model import ModelUnderTest

__all__ = ["checks_for"]

for _subject in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_subject.name}")


def checks_for(model: ModelUnderTest, done: Mapping[str, Status]) -> Iterator[Check]:
    """Yields the checks for the format of an export, or for the format that the contract names.

    Args:
        model: the export.
        done: check → its status, of the checks that have run; it grows on the way.
    """
    first = CHECKS["presence"]
    yield first  # it looks into the files, which may end the process
    kind: Format = "saved_model"
    if model.contract.format == "any":
        kind = "any"
    elif done[first.name] != "fail" and model.other_format:
        kind = "other"
    yield from (check for check in all_checks() if kind in check.formats and check is not first)
