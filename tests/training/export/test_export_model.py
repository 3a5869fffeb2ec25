"""Exports that every consumer can use, from Keras 2, Keras 3 and tf.Module."""

from __future__ import annotations

import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer.training import export_model
from generic_trainer.validation import Checker, ServingContract
from tests.training.export import taxi
from tests.training.export.serving import move, serve


def assert_valid(checker: Checker, directory: str, **contract: Any) -> None:
    """Asserts that the validator finds nothing to complain about."""
    contract.setdefault("examples", tuple(taxi.examples(without=())))
    report = checker.validate(directory, ServingContract(label_keys=("tips",), **contract))
    complaints = [result for result in report.results if result.status in ("fail", "warn")]
    assert complaints == []


def test_raw_features(keras: Any, tmp_path: Path, checker: Checker) -> None:
    model = taxi.raw_model(keras)
    directory = move(export_model(model, tmp_path / "1", schema=taxi.schema()))
    assert_valid(checker, directory)
    outputs = serve(directory, examples=taxi.examples(without=("tips", "company")))
    expected = model(taxi.raw_batch(), training=False)
    np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-5)


def test_transform_graph(
    keras: Any, tmp_path: Path, checker: Checker, transform_graph: str
) -> None:
    graph = shutil.copytree(transform_graph, tmp_path / "graph")
    model = taxi.transformed_model(keras)
    fn_args = types.SimpleNamespace(
        serving_model_dir=str(tmp_path / "1"), transform_graph_path=str(graph), schema_path=None
    )
    directory = move(export_model(model, fn_args, label_keys=("tips",)))
    shutil.rmtree(graph)
    assert_valid(checker, directory)
    expected = model(taxi.transformed_batch(), training=False)
    outputs = serve(directory, examples=taxi.examples())
    np.testing.assert_allclose(outputs["outputs"], expected, rtol=1e-5)
    features = serve(directory, "transform_features", examples=taxi.examples(without=()))
    for name, values in taxi.transformed_batch().items():
        np.testing.assert_allclose(features[name], values, rtol=1e-5)
    labels = serve(directory, "transform_labels", examples=taxi.examples(without=("miles",)))
    np.testing.assert_array_equal(labels["tips_xf"], features["tips_xf"])
    assert labels.keys() == {"tips_xf"}
