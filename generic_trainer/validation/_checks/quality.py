"""A check of how good the predictions are, compared with an answer that needs no model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._check import Findings, Skip, check, note, warn
from generic_trainer.validation._feeds import inputs_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._predictions import predictions_fact
from generic_trainer.validation._schema_rows import parsed
from generic_trainer.validation._scoring import is_float

_BATCH = 256
_ENOUGH = 30  # examples to judge by
_LEAST_S = 1.0
_RARE = 10  # labels of other classes, of which a model that has learned something finds one
_REMEDY = (
    "train longer, and see whether label and features reach the model as they are in the examples; "
    "an output of another unit than the label cannot be compared"
)
_REMEDY_OF_CLASSES = (
    "see whether label and features reach the model as they are in the examples; rare classes need "
    "a class_weight or a lower threshold, and then a metric other than the accuracy"
)


@check(after="eval_rows", needs="scores", is_advisory=True)
def beats_constant(model: ModelUnderTest) -> Findings:
    """Predictions for the eval examples are better than one constant answer to all of them.

    A model that has learned nothing loads, serves, and passes every other check. Up to 1,000
    examples with a label, from all over the files' first 256 MiB, are scored. Numbers are compared
    with their median, by the mean absolute error, and with their mean, by the mean squared error: a
    model that is worse by both gets a warning. Classes are compared with the most frequent one, by
    the accuracy; one class for all examples is no better if ten of them have another. The
    prediction is the output with the name of the label, or the only output. Labels that are
    infinite or NaN get a warning. This check warns at most.

    Example: a regression of prices whose training ended before it reached their scale.
    """
    if len(model.evidence.label_keys) != 1 or not model.evidence.eval_rows:
        raise Skip("needs examples and one label in the contract")
    if model.evidence.transform_graph is not None:
        raise Skip("the model may predict the transformed label")
    (label,) = model.evidence.label_keys
    examples = parsed(model.evidence.eval_rows)
    rows = [row for row in examples if len(_values(row, label)) == 1]
    if len(rows) < sum(len(_values(row, label)) > 1 for row in examples):
        raise Skip("most examples have several labels")
    for name, scored in model.served_scores.items():
        if not (rows and scored.feed.real and scored.feed.records and scored.feed.divisible):
            continue
        keys = [label] if label in scored.batch else list(scored.batch)
        output = _scored(model, name, rows, keys[0]) if len(keys) == 1 else None
        if output is None:
            continue
        count = len(output)
        values = [_values(row, label)[0] for row in rows[:count]]
        labels = np.array(values, dtype=object if isinstance(values[0], bytes) else None)
        finite = np.isfinite(labels) if labels.dtype.kind == "f" else np.ones(count, bool)
        measured = _measured(output[finite], labels[finite])
        if not measured:
            continue
        if not finite.all():
            broken = labels[~finite]
            yield warn(
                f"the label is {broken[0]} in {len(broken)} of {count} eval examples, so that no "
                "error can be computed",
                "correct or leave out such examples: a loss that is not finite tells no epoch from "
                "another, and training may have kept the weights of a bad one",
            )
            return
        metric, value, constant, answer, answers = measured
        model.facts.update(predictions_fact(label, labels, answers))
        model.facts[f"eval_{metric}"] = value
        model.facts[f"constant_{metric}"] = constant
        text = (
            f"{metric.replace('_', ' ')} {value:.4g} on {count} eval examples, "
            f"{constant:.4g} if each answer is {answer}"
        )
        if metric == "accuracy":
            are_alike = len(set(answers.tolist())) == 1 and constant < 1
            text += f"; every answer is {_shown(answers[0])}" if are_alike else ""
            has_others = count - round(constant * count) >= _RARE
            # Where the model gives one probability, 0.5 as its threshold is but our guess.
            are_own = not is_float(output) or output.size > count
            is_wrong = value < constant or (are_alike and are_own and has_others)
            remedy = _REMEDY_OF_CLASSES
        else:  # models of the mean are no worse than one
            is_wrong = value > constant and np.square(answers - labels).mean() > labels.var()
            remedy = _REMEDY
        model.facts["quality"] = text
        is_clear = is_wrong and count >= _ENOUGH
        yield warn(text, remedy, may_be_meant=True) if is_clear else note(text)
        return
    raise Skip("no output of a signature that scores the examples can be compared with the label")


def _shown(answer: Any) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)


def _values(example: Any, label: str) -> Sequence[Any]:
    feature = example.features.feature
    kind = feature[label].WhichOneof("kind") if label in feature else None
    return () if kind is None else getattr(feature[label], kind).value


def _scored(model: ModelUnderTest, name: str, rows: Sequence[Any], key: str) -> np.ndarray | None:
    """Returns an output of a signature for the first rows, as many as there is time for.

    None if they are no inputs of it, or if the output is a list that is as wide as its batch.
    """
    parts: list[np.ndarray] = []
    signature = model.loaded.signatures[name]
    feed = model.scores[name].feed
    # Other checks may have used up the time, as they do on a busy machine.
    with model.budget.part(0.25, least_s=min(_LEAST_S, model.contract.probe_s)):
        while batch := rows[sum(map(len, parts)) :][:_BATCH]:
            if not model.budget.allows(len(batch)):  # by the time of a row that was alone
                batch = batch[:_ENOUGH]
            inputs = inputs_of(model.signatures[name], feed, batch)
            if not (parts or model.budget.allows(len(batch))):
                raise Skip("there is no time to score examples; raise probe_s")
            if inputs is None or not model.budget.allows(len(batch)):
                break
            try:
                output = model.budget.call(signature, inputs, len(batch))[key]
            except Exception as error:
                raise Skip("not every eval example is scored, see 'eval_rows'") from error
            if output.shape[:1] != (len(batch),):
                raise Skip("an output has another number of rows, see 'output_per_row'")
            parts.append(output)
    return np.concatenate(parts) if len({part.shape[1:] for part in parts}) == 1 else None


def _measured(
    output: np.ndarray, labels: np.ndarray
) -> tuple[str, float, float, str, np.ndarray] | None:
    """Returns metric, its value, that of a constant answer, this answer, and all answers.

    The answers are floats, or classes as the labels have them. None if they cannot be compared.
    """
    if output.size == 0 or (is_float(output) and not np.isfinite(output).all()):
        return None
    answers = output.reshape(len(labels), -1)
    are_scores = is_float(answers)
    if answers.dtype != labels.dtype and object in (answers.dtype, labels.dtype):
        return None
    if answers.shape[1] > 1:  # the scores of classes
        if not are_scores or not np.isin(labels, range(answers.shape[1])).all():
            return None
        are_probabilities = answers.min() >= 0 and np.allclose(answers.sum(axis=1), 1, atol=0.02)
        if len(np.unique(labels)) < answers.shape[1] / 2 and not are_probabilities:
            return None  # perhaps an embedding
        answers = answers.argmax(axis=1)
        are_scores = False
    elif are_scores and np.isin(labels, (0, 1)).all():  # probabilities, but not logits
        if answers.min() < 0 or answers.max() > 1:
            return None
        answers = answers > 0.5
        are_scores = False
    answers = answers.reshape(-1)
    if are_scores and np.isin(labels, (-1, 1)).all() and np.abs(answers).max() > 1:
        return None  # margins
    if are_scores:
        numbers = labels.astype(np.float64)
        answers = answers.astype(np.float64)
        error = float(np.abs(answers - numbers).mean())
        of_median = float(np.abs(numbers - np.median(numbers)).mean())
        return "mean_absolute_error", error, of_median, "the median of the labels", answers
    _, counts = np.unique(labels, return_counts=True)
    share = float((answers == labels).mean())
    constant = float(counts.max() / len(labels))
    classes = answers if answers.dtype == object else answers.astype(np.int64)
    return "accuracy", share, constant, "the most frequent label", classes
