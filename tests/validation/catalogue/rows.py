"""What the rows of the catalogue are made with: one fault each, registered under its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.validation import recipes
from tests.validation.models import FEATURES
from tests.validation.recipes import Make, Recipe

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


def _kind(recipe_of: Callable[..., Make]) -> Callable[..., None]:
    """Returns what registers a fault from an entry, which ends with arguments of the recipe."""

    def register(*entry: Any, named: dict[str, Any] | None = None, **options: Any) -> None:
        name, check, source, breaks, contract, *made_of = entry
        make = recipe_of(*made_of, **(named or {}))
        add(name, check, source, breaks, make, contract, **options)

    return register


# For damage to the files of a copy, a change to its proto, a model whose score is computed from
# parsed features, which are `named`, and one that takes tensors and has the variables `named`.
damaged, edited, scored, tensors = map(
    _kind, (recipes.damaging, recipes.editing, recipes.scored, recipes.model)
)


def export_v1(
    folder: Path,
    build: Callable[[Any], Any],
    *,
    method: str = "predict",
    assets: bool = False,
    initialised: bool = True,
) -> None:
    """Writes a model as TensorFlow 1 does.

    Args:
        folder: where.
        build: gets `tf.compat.v1` and returns the inputs and the outputs of serving_default; or
            several signatures by name.
        method: what serving_default does: predict, classify or regress.
        assets: whether the graph's collection of assets goes along.
        initialised: whether tables are initialised where it is loaded.
    """
    v1 = tf.compat.v1
    info = v1.saved_model.build_tensor_info
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = build(v1)
        if isinstance(signatures, tuple):
            infos = [{key: info(x) for key, x in tensors.items()} for tensors in signatures]
            signature = v1.saved_model.build_signature_def(*infos, f"tensorflow/serving/{method}")
            signatures = {"serving_default": signature}
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(v1.tables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        files = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS) if assets else None
        builder.add_meta_graph_and_variables(
            session, ["serve"], signatures, assets_collection=files,
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
