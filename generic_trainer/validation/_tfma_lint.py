"""Mistakes in an `EvalConfig`, as far as it and the features of the examples tell.

TFMA itself finds most of this only in the Evaluator, after training, and some of it never: with a
wrong label it computes a wrong number, with a wrong weight none is applied, a slice on a feature
that does not exist is left out, and without thresholds no blessing is ever written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from typing import Any

from generic_trainer._core.protos import load_eval_config, load_schema
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import Finding, Result, fail, merge, warn


def lint_eval_config(eval_config: Any, schema: Any = None) -> Result:
    """Checks an eval config before there is a model.

    Args:
        eval_config: a `tfma.EvalConfig`, or the path of one as text or JSON.
        schema: the `Schema` of the examples that the Evaluator will read, or its path; None when
            it is not known yet, so that names of features are not checked.

    Returns:
        One result named `eval_config`, with a line per mistake.

    Raises:
        DataError: a file cannot be read.
    """
    loaded = load_schema(schema)
    features = None if loaded is None else {feature.name for feature in loaded.feature}
    return merge("eval_config", lint_findings(load_eval_config(eval_config), features))


def lint_findings(
    config: Any, features: Collection[str] | None, preprocessed: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yields the mistakes in a config, as far as names are known.

    Args:
        config: the `EvalConfig`.
        features: the examples' features.
        preprocessed: what the config's preprocessing functions return.
    """
    yield from _structure(config)
    yield from _models_of_metrics(config)
    if features is not None:
        yield from _feature_names(config, features, preprocessed)
    yield from _metrics(config)
    yield from _thresholds(config)


def _structure(config: Any) -> Iterator[Finding]:
    from tensorflow_model_analysis.utils import config_util

    if not config.model_specs:
        yield fail("there is no model_specs entry", "add model_specs { label_key: ... }")
        return
    if len(config.model_specs) > 2:
        yield fail(
            f"{len(config.model_specs)} model_specs; the Evaluator takes the model and a baseline",
            "keep one entry, and one with is_baseline: true if models are compared",
        )
    try:
        config_util.verify_eval_config(config)
    except ValueError as error:
        yield fail(reason_of(error), "correct the eval config as TFMA says")


def _models_of_metrics(config: Any) -> Iterator[Finding]:
    known = sorted(spec.name for spec in config.model_specs)
    for name in sorted({name for spec in config.metrics_specs for name in spec.model_names}):
        if name not in known:
            yield fail(
                f"metrics_specs.model_names has {name!r}, the model_specs are {known}",
                "name one of them, or leave model_names out",
            )


def _feature_names(
    config: Any, features: Collection[str], preprocessed: Collection[str] | None
) -> Iterator[Finding]:
    preprocesses = any(spec.preprocessing_function_names for spec in config.model_specs)
    known = {*features, *(preprocessed or ())}
    for kind, key, effect in (*_keys(config), *_slices(config)):
        if key in known:
            continue
        message = f"{kind} {key!r} is not a feature of the examples: {effect}"
        remedy = f"the features are {_listed(features)}"
        if not preprocesses:
            yield fail(message, remedy)
        elif preprocessed is None:
            yield warn(message, f"fine if a preprocessing function returns it; {remedy}")
        else:
            returned = _listed(preprocessed) or "nothing"
            yield fail(message, f"{remedy}, and the preprocessing functions return {returned}")


def _keys(config: Any) -> Iterator[tuple[str, str, str]]:
    """Yields what names a feature, the name, and what TFMA does when it does not exist."""
    for spec in config.model_specs:
        for key in filter(None, [spec.label_key, *spec.label_keys.values()]):
            yield "label_key", key, "metrics fail, or silently give a wrong number"
        for key in filter(None, [spec.example_weight_key, *spec.example_weight_keys.values()]):
            yield "example_weight_key", key, "TFMA silently computes unweighted metrics"


def _slices(config: Any) -> Iterator[tuple[str, str, str]]:
    slicing = list(config.slicing_specs)
    for spec in config.metrics_specs:
        shared = [each.thresholds for each in spec.per_slice_thresholds.values()]
        own = [metric.per_slice_thresholds for metric in spec.metrics]
        for threshold in itertools.chain(*shared, *own):
            slicing.extend(threshold.slicing_specs)
    for key in sorted({k for spec in slicing for k in (*spec.feature_keys, *spec.feature_values)}):
        yield "slicing_specs feature", key, "TFMA silently leaves the slice out"


def _metrics(config: Any) -> Iterator[Finding]:
    from tensorflow_model_analysis.metrics import metric_specs

    for spec in config.metrics_specs:
        for metric in spec.metrics:
            try:
                metric_specs.metric_instance(metric)
            except Exception as error:
                yield fail(
                    f"metric {metric.class_name!r} cannot be made: {reason_of(error)[:300]}",
                    "use the name of a class of tfma.metrics or tf.keras.metrics, name the module "
                    "of your own, and give its arguments as JSON in config",
                )


def _thresholds(config: Any) -> Iterator[Finding]:
    if not any(_has_threshold(spec) for spec in config.metrics_specs):
        yield warn(
            "no metric has a threshold: the Evaluator never writes a blessing, and a Pusher that "
            "waits for one never pushes",
            "add threshold { value_threshold { lower_bound { value: ... } } } to a metric",
        )
    for spec in config.metrics_specs:
        computed = {name for metric in spec.metrics for name in _names_of(metric)}
        if computed and (others := sorted(set(spec.thresholds) - computed)):
            yield warn(
                f"thresholds for {others}, and the metrics here are {sorted(computed)}: where the "
                "model itself does not compute these, the Evaluator blesses no model",
                "name a metric that is computed, or put the threshold into its own entry",
            )
        for metric in spec.metrics:
            change = metric.threshold.change_threshold
            if metric.threshold.HasField("change_threshold") and not change.direction:
                yield fail(
                    f"metric {metric.class_name!r}: change_threshold has no direction, which TFMA "
                    "refuses after it has evaluated",
                    "add direction: LOWER_IS_BETTER or HIGHER_IS_BETTER",
                )
            bounds = metric.threshold.value_threshold
            both = bounds.HasField("lower_bound") and bounds.HasField("upper_bound")
            if both and bounds.lower_bound.value > bounds.upper_bound.value:
                yield fail(
                    f"metric {metric.class_name!r}: lower_bound {bounds.lower_bound.value:g} is "
                    f"above upper_bound {bounds.upper_bound.value:g}, so that no model is blessed",
                    "exchange the bounds",
                )


def _names_of(metric: Any) -> list[str]:
    """Returns the names under which TFMA reports a metric; none where it cannot be made."""
    from tensorflow_model_analysis.metrics import metric_specs

    with contextlib.suppress(Exception):  # which `_metrics` tells
        instance = metric_specs.metric_instance(metric)
        return [instance.get_config().get("name") or instance.name]
    return []


def _has_threshold(spec: Any) -> bool:
    shared = (spec.thresholds, spec.per_slice_thresholds, spec.cross_slice_thresholds)
    return any(map(len, shared)) or any(
        metric.HasField("threshold")
        or len(metric.per_slice_thresholds)
        or len(metric.cross_slice_thresholds)
        for metric in spec.metrics
    )


def _listed(names: Collection[str], limit: int = 12) -> str:
    shown = ", ".join(sorted(names)[:limit])
    return shown + (", ..." if len(names) > limit else "")
