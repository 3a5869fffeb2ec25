"""Tests of `generic_trainer._core.internals`: every row exists, is used, and fails readably."""

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.internals import PrivateName
from generic_trainer.errors import ConfigurationError
from tests.house import Module, modules

OVERRIDDEN = [
    PrivateName(f"{owner}.{name}", "its subclasses")
    for owner, names in internals.OVERRIDDEN.items()
    for name in names.split()
]
ROWS = [*internals.names().values(), *OVERRIDDEN]
# It may only fall: each private name can break with a release of its library.
LIMIT = 60


def seeded_context() -> Any:
    tf.random.set_seed(1)
    return internals.TF_EAGER_CONTEXT.get()()


def estimators() -> Any:
    return importlib.import_module("generic_trainer.estimator")


# Owners whose attributes exist on objects alone -> a function that returns one.
OBJECTS: dict[str, Callable[[], Any]] = {
    "tensorflow:compat.v1.train.SessionRunContext": lambda: tf.compat.v1.train.SessionRunContext(
        original_args=None, session=None
    ),
    "tensorflow:data.Dataset": lambda: tf.data.Dataset.range(1).batch(1),
    "tensorflow:data.Iterator": lambda: iter(tf.data.Dataset.range(1)),
    "tensorflow.python.eager.context:Context": seeded_context,
    "tf_keras:callbacks.Callback": lambda: importlib.import_module("tf_keras").callbacks.Callback(),
    "keras:callbacks.TensorBoard": lambda: importlib.import_module("keras").callbacks.TensorBoard(),
    "tensorflow_estimator.python.estimator.estimator:Estimator": lambda: estimators().Estimator(
        lambda features, labels, mode: None, model_dir="unused"
    ),
    "tensorflow_estimator.python.estimator.run_config:RunConfig": lambda: estimators().RunConfig(),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_every_name_exists(row: PrivateName) -> None:
    package = re.split(r"[.:]", row.path)[0]
    if package not in sys.stdlib_module_names and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    owner = row.path.rpartition(".")[0]
    if owner in OBJECTS:
        row.of(OBJECTS[owner]())
    else:
        row.get()


def test_at_most_as_many_as_allowed() -> None:
    assert len(ROWS) <= LIMIT
    assert len({row.path for row in ROWS}) == len(ROWS)


def test_every_key_is_used_and_every_use_has_a_key() -> None:
    used = {
        node.attr
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "internals"
    }
    keys = internals.names().keys()
    assert keys - used == set(), "rows without a use"
    assert {name for name in used if name.isupper()} - keys == set(), "uses without a row"


def foreign_bases(module: Module, node: ast.ClassDef) -> Iterator[Any]:
    """Yields the bases of a class that belong to another library."""
    for base in map(ast.unparse, node.bases):
        if base.endswith("callbacks.Callback"):  # of either Keras, also within functions
            yield importlib.import_module("tf_keras").callbacks.Callback()
            yield importlib.import_module("keras").callbacks.Callback()
        elif node in module.tree.body:
            owner = eval(base, vars(importlib.import_module(module.name)))
            yield from (
                one
                for one in getattr(owner, "__mro__", ())
                if one.__module__.partition(".")[0] not in ("generic_trainer", "builtins")
            )


def stored_names(node: ast.ClassDef) -> set[str]:
    """Returns the underscored names that a class defines or assigns."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef) and inner in node.body:
            names.add(inner.name)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names.update([inner.attr] if ast.unparse(inner.value) == "self" else [])
    return {name for name in names if re.match(r"_[a-z].*[^_]$", name)}


def test_every_overridden_name_is_listed() -> None:
    pytest.importorskip("tfx")
    stored = [
        (module, node, names)
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.bases and (names := stored_names(node))
    ]
    listed = {row.name for row in ROWS}
    assert [
        f"{module.name}.{node.name}: {name}"
        for module, node, names in stored
        for name in names - listed
        for base in foreign_bases(module, node)
        if hasattr(base, name)
    ] == []
    overridden = {row.name for row in OVERRIDDEN}
    assert overridden.difference(*(names for *_, names in stored)) == set(), "rows without a use"


@pytest.mark.parametrize("path", ["tensorflow.python.gone", "tensorflow.python:eager.gone.far"])
def test_the_error_for_a_missing_name_has_library_and_version(path: str) -> None:
    expected = (
        rf"tensorflow {tf.__version__} has no {path.replace(':', '.')}, which .* for a test\."
    )
    with pytest.raises(ConfigurationError, match=expected):
        PrivateName(path, "a test").get()


def test_the_error_names_a_library_that_is_not_installed() -> None:
    with pytest.raises(ConfigurationError, match=r"no-such-library \(not installed\) has no"):
        PrivateName("no_such_library:name", "a test").get()


def test_an_attribute_is_set() -> None:
    class Owner:
        _private = 1

    owner = Owner()
    PrivateName("python:Owner._private", "a test").set(owner, 2)
    assert owner._private == 2
