"""What the rows of the catalogue are made with: one fault each, registered under its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation import recipes
from tests.validation.models import FEATURES
from tests.validation.recipes import Features, Make, Recipe, damaging, editing

FAULTS: dict[str, Recipe] = {}


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
    add(name, check, source, "all", damaging(edit), *more, **options)


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
    add(name, check, source, breaks, editing(edit), *more, **options)


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
    make = recipes.scored(score, **(features or {}))
    add(name, check, source, breaks, make, contract, **options)


def tensors(
    name: str,
    check: str,
    source: str,
    breaks: str,
    contract: Any,
    function: Callable[..., dict[str, Any]],
    *specs: tf.TensorSpec,
    tracked: dict[str, Callable[[], Any]] | None = None,
    **options: Any,
) -> None:
    """Registers a model that takes tensors; `tracked` make the variables that it has."""
    make = recipes.model(function, *specs, **(tracked or {}))
    add(name, check, source, breaks, make, contract, **options)


def export_v1(
    folder: Path,
    build: Callable[[Any], tuple[dict[str, Any], dict[str, Any]]],
    *,
    method: str = "predict",
    assets: bool = False,
    initialised: bool = True,
) -> None:
    """Writes a model as TensorFlow 1 does.

    Args:
        folder: where.
        build: gets `tf.compat.v1` and returns the inputs and the outputs of serving_default.
        method: what serving_default does: predict, classify or regress.
        assets: whether the graph's collection of assets goes along.
        initialised: whether tables are initialised where it is loaded.
    """
    v1 = tf.compat.v1
    info = v1.saved_model.build_tensor_info
    with tf.Graph().as_default(), v1.Session() as session:
        infos = [{key: info(x) for key, x in tensors.items()} for tensors in build(v1)]
        signature = v1.saved_model.build_signature_def(*infos, f"tensorflow/serving/{method}")
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(v1.tables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        files = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS) if assets else None
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature},
            assets_collection=files,
            main_op=v1.tables_initializer() if initialised else None,
        )  # fmt: skip
        builder.save()


def export_of_miles(folder: Path, outputs: Callable[[Any, tf.Tensor], Any], **options: Any) -> None:
    """Writes a graph of TensorFlow 1 that takes examples and computes outputs of their miles.

    Args:
        folder: where.
        outputs: gets `tf.compat.v1` and the miles; returns a tensor, or several by name.
        options: more arguments of `export_v1`.
    """

    def build(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        made = outputs(v1, v1.io.parse_example(examples, FEATURES)["miles"])
        return {"inputs": examples}, made if isinstance(made, dict) else {"outputs": made}

    export_v1(folder, build, **options)
