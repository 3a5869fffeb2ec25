"""What the rows of the catalogue are made with: one fault each, registered under its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation.broken import Make, Recipe
from tests.validation.broken_rows import scoring
from tests.validation.models import ROWS, broken_copy, edit_proto, save, serving

FAULTS: dict[str, Recipe] = {}
Features = dict[str, tf.Tensor]


def add(
    name: str,
    check: str,
    source: str,
    breaks: str,
    make: Make,
    contract: Any = None,
    *,
    status: str = "fail",
    told: str = "",
    missed: str = "",
) -> None:
    """Registers a fault."""
    assert name not in FAULTS, name
    FAULTS[name] = Recipe(make, check, status, told, contract, source, breaks, missed)


def fault(
    check: str, source: str, breaks: str, contract: Any = None, **options: Any
) -> Callable[[Make], Make]:
    """Registers the decorated recipe under its function's name."""

    def register(make: Make) -> Make:
        add(make.__name__, check, source, breaks, make, contract, **options)
        return make

    return register


def damaged(
    name: str, check: str, source: str, edit: Callable[[Path], Any], *more: Any, **options: Any
) -> None:
    """Registers damage to the files of a copy, which breaks everybody."""
    make = _copying(edit)
    add(name, check, source, "all", make, *more, **options)


def edited(
    name: str,
    check: str,
    source: str,
    breaks: str,
    edit: Callable[[Any], Any],
    *more: Any,
    **options: Any,
) -> None:
    """Registers a change to the proto of a copy."""
    add(name, check, source, breaks, _copying(lambda f: edit_proto(f, edit)), *more, **options)


def _copying(edit: Callable[[Path], Any]) -> Make:
    return lambda good, folder: broken_copy(good, folder, edit)


def scored(
    name: str,
    check: str,
    source: str,
    breaks: str,
    contract: Any,
    score: Callable[[Features], tf.Tensor],
    *,
    features: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Registers a model whose score is computed from parsed features."""
    add(
        name, check, source, breaks,
        lambda good, folder: save(scoring(score, **(features or {})), folder),
        contract, **options,
    )  # fmt: skip


def tensors(
    name: str,
    check: str,
    source: str,
    breaks: str,
    contract: Any,
    function: Callable[..., dict[str, Any]],
    *specs: tf.TensorSpec,
    tracked: Callable[[], dict[str, Any]] = dict,
    **options: Any,
) -> None:
    """Registers a model that takes tensors; `tracked` makes the variables that it has."""

    def make(good: Path, folder: Path) -> None:
        has = tracked()
        module = serving(lambda *args: function(*args, **has), *(specs or [ROWS]), **has)
        save(module, folder)

    add(name, check, source, breaks, make, contract, **options)


def export_v1(
    folder: Path,
    build: Callable[[Any], tuple[dict[str, Any], dict[str, Any]]],
    *,
    signature: Callable[..., Any] | None = None,
    assets: bool = False,
    initialised: bool = True,
) -> None:
    """Writes a model as TensorFlow 1 does.

    Args:
        folder: where.
        build: gets `tf.compat.v1` and returns the inputs and the outputs of serving_default.
        signature: makes the signature of them; a predict one by default.
        assets: whether the graph's collection of assets goes along.
        initialised: whether tables are initialised where it is loaded.
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        inputs, outputs = build(v1)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(v1.tables_initializer())
        define = signature or v1.saved_model.predict_signature_def
        builder = v1.saved_model.Builder(str(folder))
        files = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS) if assets else None
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": define(inputs, outputs)},
            assets_collection=files,
            main_op=v1.tables_initializer() if initialised else None,
        )  # fmt: skip
        builder.save()
