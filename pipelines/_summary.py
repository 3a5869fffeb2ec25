"""The few lines that a run of the penguin pipeline ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_model_analysis as tfma

from generic_trainer.validation import ValidationReport
from pipelines._results import RunResults


@dataclass(frozen=True)
class EvaluatedSlice:
    """How good a model is on a part of the eval split.

    Attributes:
        name: "all penguins", or an island.
        accuracy: Between 0 and 1.
        num_examples: Penguins in the slice.
    """

    name: str
    accuracy: float
    num_examples: int

    @classmethod
    def of(cls, key: Iterable[tuple[str, Any]], metrics: Mapping[str, Any]) -> EvaluatedSlice:
        """Makes one from a TFMA slice key and its metrics."""
        return cls(
            name=", ".join(str(value) for _, value in key) or "all penguins",
            accuracy=metrics["sparse_categorical_accuracy"]["doubleValue"],
            num_examples=int(metrics["example_count"]["doubleValue"]),
        )


def summarize(results: RunResults) -> str:
    """Says where the pushed model lies, how good it is, and what it makes of one penguin."""
    lines = {
        "Pushed model": results.pushed_to or "none: the Evaluator did not bless it",
        "Checks": _checks(results.uri("model_run")),
        "Verdict": _verdict(results),
        "Evaluation": _evaluation(results.uri("evaluation")),
        "Metrics": _numbers(results.training_metrics()),
    }
    if results.pushed_to:
        penguin = first_penguin(results.uri("examples"))
        lines["Prediction"] = _prediction(results.pushed_to, penguin)
    return "\n".join(_block(title, text) for title, text in lines.items())


def predict(model_dir: str, examples: Iterable[tf.train.Example]) -> dict[str, tf.Tensor]:
    """Runs the default signature of a SavedModel over N tf.Examples."""
    model = tf.saved_model.load(model_dir)
    serialized = [example.SerializeToString() for example in examples]
    return model.signatures["serving_default"](examples=tf.constant(serialized))


def evaluated_slices(evaluation_uri: str) -> list[EvaluatedSlice]:
    """Reads what the Evaluator found out about the new model, all penguins first."""
    with_any_model = tfma.load_eval_result(evaluation_uri)
    candidates = (spec.name for spec in with_any_model.config.model_specs if not spec.is_baseline)
    result = tfma.load_eval_result(evaluation_uri, model_name=next(candidates) or None)
    return [
        EvaluatedSlice.of(key, metrics[""][""])
        for key, metrics in sorted(result.slicing_metrics, key=lambda item: item[0])
    ]


def first_penguin(examples_uri: str) -> tf.train.Example:
    """Returns the first raw example of the eval split, which was not trained on."""
    files = sorted(str(path) for path in Path(examples_uri, "Split-eval").iterdir())
    records = tf.data.TFRecordDataset(files, compression_type="GZIP")
    return tf.train.Example.FromString(next(iter(records)).numpy())


def _block(title: str, text: str) -> str:
    first, *others = text.splitlines()
    return "\n".join([f"{title:<14}{first}", *(" " * 14 + line for line in others)])


def _checks(model_run_uri: str) -> str:
    text = Path(model_run_uri, "report.json").read_text(encoding="utf-8")
    report = ValidationReport.from_json(text)
    ran = sum(result.status != "skip" for result in report.results)
    return (
        f"{ran} passed in {report.facts['seconds']:.1f} s, {len(report.warnings)} with a warning\n"
        f"{model_run_uri}/report.html"
    )


def _verdict(results: RunResults) -> str:
    verdict = "blessed" if results.blessed else "not blessed"
    if results.baseline is None:
        return f"{verdict}; no blessed model to compare with yet"
    return f"{verdict}; compared with the blessed model {results.baseline.id}"


def _evaluation(evaluation_uri: str) -> str:
    found = evaluated_slices(evaluation_uri)
    return "\n".join(f"{s.name:<14}accuracy {s.accuracy:.3f}  of {s.num_examples}" for s in found)


def _numbers(metrics: Mapping[str, float]) -> str:
    # Keras records each validation result a second time, against the steps.
    shown = {name: metrics[name] for name in sorted(metrics) if "_vs_iterations" not in name}
    width = max((len(name) for name in shown), default=0) + 2
    return "\n".join(f"{name:<{width}}{value:.4g}" for name, value in shown.items()) or "none"


def _prediction(model_dir: str, penguin: tf.train.Example) -> str:
    outputs = predict(model_dir, [penguin])
    species = outputs["species"].numpy()[0].decode()
    probability = outputs["probabilities"].numpy()[0].max()
    return f"{describe(penguin)}\n→ {species}, {probability:.1%}"


def describe(penguin: tf.train.Example) -> str:
    """Returns a raw example as one readable line."""
    features = sorted(penguin.features.feature.items())
    return ", ".join(f"{name} {_value(feature)}" for name, feature in features)


def _value(feature: Any) -> str:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else []
    texts = [value.decode() if isinstance(value, bytes) else f"{value:g}" for value in values]
    return " ".join(texts) or "unknown"
