"""Mistakes in an `EvalConfig` that it and the features of the examples show.

TFMA itself finds most of this only in the Evaluator, after training, and some of it never: with a
wrong label it computes a wrong number, with a wrong weight none is applied, a slice on a feature
that does not exist is left out, and without thresholds no blessing is ever written.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from generic_trainer._core.texts import load_eval_config, load_schema, reason_of
from generic_trainer.validation._check import Findings, Result, fail, merge, warn

_OF_SLICES = "slicing_specs feature"


def lint_eval_config(eval_config: Any, schema: Any = None, transformed: Any = None) -> Result:
    """Checks an eval config before there is a model.

    Args:
        eval_config: a `tfma.EvalConfig`, or the path of one as text or JSON.
        schema: the `Schema` of the raw examples, or its path; None when it is not known yet, so
            that names of features are not checked.
        transformed: that of the output of Transform, which the Evaluator may read instead.

    Returns:
        One result named `eval_config`, with a line per mistake.

    Raises:
        DataError: a file cannot be read.
    """
    raw, others = load_schema(schema), load_schema(transformed)
    features = None if raw is None else {feature.name for feature in raw.feature}
    of_transform = set() if others is None else {feature.name for feature in others.feature}
    findings = lint_findings(load_eval_config(eval_config), features, transformed=of_transform)
    return merge("eval_config", findings)


def lint_findings(
    config: Any,
    features: Collection[str] | None,
    preprocessed: Collection[str] | None = None,
    *,
    transformed: Collection[str] = (),
    are_all: bool = True,
) -> Findings:
    """Yields the mistakes in a config, as far as names are known.

    Args:
        config: the `EvalConfig`.
        features: the raw examples' features.
        preprocessed: outputs of the config's preprocessing functions.
        transformed: features of the output of Transform.
        are_all: whether `features` are all of them, as in a schema, or those of some examples.
    """
    yield from _structure(config)
    if features is not None and evaluates_transformed(config, features, transformed):
        yield warn(
            "label_key is a feature of the output of Transform alone",
            "right if the Evaluator reads that; then it is not rehearsed",
        )
        features = transformed
    if features is not None:
        yield from _feature_names(config, features, preprocessed, are_all)
    yield from _metrics(config)
    yield from _thresholds(config)


def labels_of(config: Any) -> set[str]:
    """Returns the labels that the models of a config have."""
    specs = config.model_specs
    return {key for spec in specs for key in (spec.label_key, *spec.label_keys.values()) if key}


def evaluates_transformed(config: Any, raw: Collection[str], transformed: Collection[str]) -> bool:
    """Whether a config is for the output of Transform, as the raw examples lack its labels."""
    labels = labels_of(config)
    preprocesses = any(spec.preprocessing_function_names for spec in config.model_specs)
    return not (preprocesses or labels <= {*raw}) and labels <= {*transformed}


def _structure(config: Any) -> Findings:
    from tensorflow_model_analysis.utils import config_util

    if not config.model_specs:
        yield fail("the config has no model_specs entry", "add model_specs { label_key: ... }")
        return
    if len(config.model_specs) > 2:
        yield fail(
            f"{len(config.model_specs)} model_specs; the Evaluator takes model and baseline",
            "keep one entry, and one with is_baseline: true to compare models",
        )
    elif all(spec.is_baseline for spec in config.model_specs):
        yield fail("all model_specs have is_baseline: true", "add one for the model itself")
        return
    elif len({spec.name for spec in config.model_specs}) < len(config.model_specs):
        yield warn(
            "two model_specs without different names: with a baseline the Evaluator fails",
            "give them the names candidate and baseline",
        )
    try:
        config_util.verify_eval_config(config)
    except ValueError as error:
        yield fail(reason_of(error), "correct the eval config")
    known = sorted(spec.name for spec in config.model_specs)
    for name in sorted({name for spec in config.metrics_specs for name in spec.model_names}):
        if name not in known:
            message = f"metrics_specs.model_names has {name!r}, the model_specs are {known}"
            judge = fail if known[1:] else warn  # TFMA drops the name of a single model
            yield judge(message, "name one of them, or leave model_names out")


def _feature_names(
    config: Any, features: Collection[str], preprocessed: Collection[str] | None, are_all: bool
) -> Findings:
    preprocesses = any(spec.preprocessing_function_names for spec in config.model_specs)
    known = {*features, *(preprocessed or ())}
    for kind, key, effect in _keys(config):
        if key in known:
            continue
        message = f"{kind} {key!r} is not a feature of the examples: {effect}"
        remedy = f"the features are {', '.join(sorted(known)[:12])}"
        if preprocesses and preprocessed is None:
            yield warn(message, f"fine if a preprocessing function returns it; {remedy}")
        elif kind == _OF_SLICES and not are_all:
            yield warn(f"no example that was read has the {kind} {key!r}", remedy)
        else:
            yield fail(message, remedy)


def _keys(config: Any) -> Iterator[tuple[str, str, str]]:
    """Yields the field that names a feature, the name, and the effect if it does not exist."""
    for spec in config.model_specs:
        for key in filter(None, [spec.label_key, *spec.label_keys.values()]):
            yield "label_key", key, "metrics fail, or silently give a wrong number"
        for key in filter(None, [spec.example_weight_key, *spec.example_weight_keys.values()]):
            yield "example_weight_key", key, "TFMA silently computes unweighted metrics"
    for key in sorted({spec.query_key for spec in config.metrics_specs} - {""}):
        yield "query_key", key, "TFMA silently takes all examples for those of one query"
    slicing = [*_computed_slices(config), *_of_thresholds(config, "slicing_specs")]
    for key in sorted({k for spec in slicing for k in (*spec.feature_keys, *spec.feature_values)}):
        yield _OF_SLICES, key, "TFMA silently leaves the slice out"


def _computed_slices(config: Any) -> list[Any]:
    """Returns the slicing specs that TFMA computes; none means all examples."""
    compared = config.cross_slicing_specs
    sides = [side for spec in compared for side in (spec.baseline_spec, *spec.slicing_specs)]
    return [*config.slicing_specs, *sides]


def _of_thresholds(config: Any, field: str) -> list[Any]:
    """Returns the `slicing_specs` or `cross_slicing_specs` of all thresholds."""
    thresholds = [each for spec in config.metrics_specs for _, each in _metric_thresholds(spec)]
    return [slices for each in thresholds for slices in getattr(each, field, ())]


def _is_computed(wanted: Any, config: Any) -> bool:
    """Whether TFMA computes slices that a slicing spec of a threshold is for."""

    def gives(spec: Any) -> bool:
        keys = {*spec.feature_keys, *spec.feature_values}
        fixed = spec.feature_values.items()
        return bool(spec.slice_keys_sql) or (
            keys == {*wanted.feature_keys, *wanted.feature_values}
            and all(wanted.feature_values.get(key, value) == value for key, value in fixed)
        )

    computed = _computed_slices(config)
    overall = not (wanted.feature_keys or wanted.feature_values or computed)
    return overall or bool(wanted.slice_keys_sql) or any(map(gives, computed))


def _has_missing_comparison(config: Any) -> bool:
    """Whether TFMA takes slices of a `cross_slice_thresholds` for missing though it has them."""
    from tensorflow_model_analysis.evaluators import metrics_validator
    from tensorflow_model_analysis.proto import validation_result_pb2

    compared = _of_thresholds(config, "cross_slicing_specs")
    details = [validation_result_pb2.SlicingDetails(cross_slicing_spec=spec) for spec in compared]
    with contextlib.suppress(Exception):  # of a metric, which `_metrics` reports
        missing = metrics_validator.get_missing_slices(details, config)
        return any(spec in missing for spec in compared)
    return False


def _metrics(config: Any) -> Findings:
    from tensorflow_model_analysis.metrics import metric_specs

    for spec in config.metrics_specs:
        for metric in spec.metrics:
            try:
                metric_specs.metric_instance(metric)
            except Exception as error:
                judge = warn if is_elsewhere(error, metric) else fail
                yield judge(
                    f"metric {metric.class_name!r} cannot be made: {reason_of(error)[:300]}",
                    "use a class of tfma.metrics or tf.keras.metrics, with arguments as JSON, "
                    "or of a module that the Evaluator can import",
                )


def is_elsewhere(error: Exception, metric: Any) -> bool:
    """Whether a metric is of a module that is not on this machine: the Evaluator may have it."""
    return isinstance(error, ModuleNotFoundError) and metric.module.startswith(error.name or "-")


def _thresholds(config: Any) -> Findings:
    if not any(any(_metric_thresholds(spec)) for spec in config.metrics_specs):
        yield warn(
            "no metric has a threshold: the Evaluator never writes a blessing, and a Pusher "
            "that waits for one never pushes",
            "add threshold { value_threshold { lower_bound { value: ... } } } to a metric",
        )
    bounded = _of_thresholds(config, "slicing_specs")
    for wanted in bounded:
        if not _is_computed(wanted, config):
            slices = {**dict.fromkeys(wanted.feature_keys, "any"), **wanted.feature_values}
            yield warn(
                f"a threshold for the slice {slices or 'of all examples'}, which slicing_specs "
                "does not have: the Evaluator blesses no model",
                "add the slice to slicing_specs",
            )
    fewest = config.options.min_slice_size.value
    if fewest > 1 and any(spec != type(spec)() for spec in bounded):
        yield warn(
            f"min_slice_size {fewest}: TFMA leaves out metrics of slices with fewer examples, and "
            "for one that has a threshold the Evaluator then blesses no model",
            "see that such slices have more examples, or leave the option out",
        )
    if _has_missing_comparison(config):
        yield warn(
            "cross_slice_thresholds: TFMA takes the compared slices for missing even where it "
            "computes them: the Evaluator blesses no model",
            "leave the thresholds out, and read the compared metrics",
        )
    for spec in config.metrics_specs:
        computed = {name for metric in spec.metrics for name in _names_of(metric)}
        if computed and (others := sorted(set(spec.thresholds) - computed)):
            yield warn(
                f"thresholds for {others}, and the metrics here are {sorted(computed)}"
                ": unless the model itself computes them, the Evaluator blesses no model",
                "put the threshold into the own entry of a metric",
            )
        for subject, each in _metric_thresholds(spec):
            threshold = getattr(each, "threshold", each)
            has_change = threshold.HasField("change_threshold")
            if has_change and not threshold.change_threshold.direction:
                yield warn(
                    f"{subject}: change_threshold has no direction: beside a baseline, the "
                    "Evaluator blesses no model",
                    "add direction: LOWER_IS_BETTER or HIGHER_IS_BETTER",
                )
            bounds = threshold.value_threshold
            both = bounds.HasField("lower_bound") and bounds.HasField("upper_bound")
            lower = bounds.lower_bound.value
            upper = bounds.upper_bound.value
            if both and lower > upper:
                yield fail(
                    f"{subject}: lower_bound {lower:g} is above upper_bound {upper:g}, so that "
                    "no model is blessed",
                    "exchange the bounds",
                )


def _metric_thresholds(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yields what each threshold of a metrics spec is for, and the message that has it.

    That is the `MetricThreshold` itself, or it is the field `threshold`, beside the slices.
    """
    for name, threshold in spec.thresholds.items():
        yield f"thresholds of {name!r}", threshold
    for of in (spec.per_slice_thresholds, spec.cross_slice_thresholds):
        for name, of_slices in of.items():
            for each in of_slices.thresholds:
                yield f"thresholds of slices for {name!r}", each
    for metric in spec.metrics:
        subject = f"metric {metric.class_name!r}"
        own = [metric] if metric.HasField("threshold") else []
        for each in (*own, *metric.per_slice_thresholds, *metric.cross_slice_thresholds):
            yield subject, each


def _names_of(metric: Any) -> list[str]:
    """Returns the names under which TFMA reports a metric; none if it cannot be made."""
    from tensorflow_model_analysis.metrics import metric_specs

    with contextlib.suppress(Exception):  # which `_metrics` reports
        instance = metric_specs.metric_instance(metric)
        return [instance.get_config().get("name") or instance.name]
    return []
