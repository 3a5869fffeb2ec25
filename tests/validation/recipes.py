"""Recipes for broken models: how each is made, and which check must find it.

A recipe gets a good model and a folder that does not exist yet, and puts a broken model there.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.models import FEATURES, ROWS, SERIALIZED, edit_proto

Make = Callable[[Path, Path], Any]
Features = dict[str, tf.Tensor]

WITH_EXAMPLES = ServingContract(examples=models.examples(), label_keys=("tips",))
EVALUATED = ServingContract(signatures=(), consumers=("Evaluator", "Pusher"))
EVALUATED_EXAMPLES = dataclasses.replace(WITH_EXAMPLES, consumers=("Evaluator", "Pusher"))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A way to break a model.

    Attributes:
        make: puts the model into the second path.
        check: the check that must find it.
        status: what that check must say.
        told: a part of its message.
        contract: what the model is checked against; a function makes it of the good model.
        source: where the idea comes from: an issue, or the part of a library that breaks.
        breaks: whom the model breaks.
        missed: why no check can find it; empty for those that one finds.
    """

    make: Make
    check: str
    status: str
    told: str
    contract: ServingContract | Callable[[Path], ServingContract] | None
    source: str = ""
    breaks: str = ""
    missed: str = ""

    def contract_for(self, good: Path) -> ServingContract | None:
        """Returns the contract, where `good` is the good model."""
        return self.contract(good) if callable(self.contract) else self.contract


# Those of the default tests.
RECIPES: dict[str, Recipe] = {}


def broken(
    name: str,
    check: str,
    told: str,
    make: Make,
    contract: ServingContract | None = None,
    *,
    status: str = "fail",
) -> None:
    """Registers a recipe."""
    assert name not in RECIPES, name
    RECIPES[name] = Recipe(make, check, status, told, contract)


def damaging(edit: Callable[[Path], Any]) -> Make:
    """A recipe of damage to the files of a copy."""
    return lambda good, folder: edit(Path(shutil.copytree(good, folder)))


def editing(edit: Callable[[Any], Any]) -> Make:
    """A recipe of a change to the proto of a copy."""
    return damaging(lambda folder: edit_proto(folder, edit))


def model(
    function: Callable[..., dict[str, Any]], *specs: tf.TensorSpec, **tracked: Callable[[], Any]
) -> Make:
    """A recipe of a model that takes tensors; `tracked` make its variables, tables and the like."""

    def make(good: Path, folder: Path) -> None:
        has = {key: value() for key, value in tracked.items()}
        inputs = specs or (ROWS,)
        module = models.serving(lambda *args: function(*args, **has), *inputs, **has)
        models.save(module, folder)

    return make


def scoring(score: Callable[[Features], tf.Tensor], **features: Any) -> tf.Module:
    """A model whose score is computed from parsed features."""
    spec = {**FEATURES, **features}
    return models.serving(lambda x: {"score": score(tf.io.parse_example(x, spec))}, SERIALIZED)


def scored(score: Callable[[Features], tf.Tensor], **features: Any) -> Make:
    """A recipe of such a model."""
    return lambda good, folder: models.save(scoring(score, **features), folder)


def parsing(
    name: str, dtype: Any, score: Callable[[tf.Tensor], tf.Tensor] = tf.identity, **more: Any
) -> Make:
    """A recipe of a model that parses one feature and no other."""
    spec = {name: tf.io.FixedLenFeature([], dtype, **more)}
    return model(lambda x: {"score": score(tf.io.parse_example(x, spec)[name])}, SERIALIZED)


def _kind(recipe_of: Callable[..., Make]) -> Callable[..., Any]:
    """Makes a decorator that registers what it decorates, as a recipe of this kind."""

    def mark(check: str, told: str = "", *specs: Any, features: Any = None, **options: Any) -> Any:
        def register(function: Any) -> Any:
            make = recipe_of(function, *specs, **(features or {}))
            broken(function.__name__, check, told, make, **options)
            return function

        return register

    return mark


# Decorators of a recipe, and of the functions that those above take.
recipe, damages, edits, serves, scores = map(
    _kind, (lambda make: make, damaging, editing, model, scored)
)
