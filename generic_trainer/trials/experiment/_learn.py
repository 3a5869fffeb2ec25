"""Names of `tf.contrib` that need code, beside the tables of `contrib`.

They do what they did in TensorFlow 1, with estimators of `tf.estimator` and feature columns of now.
Their arguments have the order and the names of then.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from generic_trainer import estimator as tf_estimator
from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator import tf1
from generic_trainer.trials._estimator_exports import name_default_signature
from generic_trainer.trials._trial import takes


def taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Returns those arguments that a function takes by these names."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


class ModeKeys:
    """`tf.contrib.learn.ModeKeys`: the modes of `tf.estimator`, with `INFER` for `PREDICT`."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"
    PREDICT = "infer"


# Sessions are configured by its `session_config`; the launcher starts all servers.
RunConfig = tf_estimator.RunConfig


class ExportStrategy(NamedTuple):
    """A kind of export, which `Experiment(export_strategies=...)` takes.

    Attributes:
        name: of the folder below `model_dir`/export.
        export_fn: takes the estimator and the folder and, if they are among its arguments,
            `checkpoint_path` and `eval_result`; returns the path of the export.

    Source: `tf.contrib.learn.ExportStrategy` of TensorFlow 1.
    """

    name: str
    export_fn: Callable[..., Any]

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None = None,
        eval_result: Any = None,
        is_the_final_export: bool = True,
    ) -> Any:
        """Calls `export_fn`; `is_the_final_export` is an argument of `tf.estimator`'s exporters."""
        named = taken(self.export_fn, checkpoint_path=checkpoint_path, eval_result=eval_result)
        return self.export_fn(estimator, export_path, **named)


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    default_output_alternative_key: str | None = None,
    assets_extra: dict[str, str] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    strip_default_attrs: bool | None = None,
) -> ExportStrategy:
    """Returns the strategy "Servo", which writes a SavedModel.

    Args:
        serving_input_fn: returns a `ServingInputReceiver`.
        default_output_alternative_key: must be None with estimators of `tf.estimator`.
        assets_extra: path below `assets.extra` → file.
        as_text: whether the SavedModel is text.
        exports_to_keep: older exports are deleted; None keeps all.
        strip_default_attrs: has no effect: they always are.

    Raises:
        ConfigurationError: `default_output_alternative_key` is given.
    """
    if default_output_alternative_key is not None:
        raise ConfigurationError(
            "make_export_strategy(default_output_alternative_key=...) was for estimators of "
            "tf.contrib.learn: name export_outputs in the EstimatorSpec."
        )

    exporter = tf_estimator.LatestExporter(
        "Servo", serving_input_fn, assets_extra, as_text, exports_to_keep
    )

    def export_fn(estimator: Any, export_path: str, checkpoint_path: str | None = None) -> Any:
        export = exporter.export(estimator, export_path, checkpoint_path, None, True)
        # Premade estimators of tf.contrib.learn served "predict" by default, if requests are not
        # tf.Examples; those of tf.estimator have no default then.
        name_default_signature(export)
        return export

    return ExportStrategy("Servo", export_fn)


# What arguments of a metric's function may be called.
_ROLES = {
    "predictions": ("predictions", "prediction", "logits", "logit"),
    "labels": ("labels", "label", "targets", "target"),
    "weights": ("weights", "weight"),
}


@dataclasses.dataclass(frozen=True)
class MetricSpec:
    """A metric of `Experiment(eval_metrics={"name": MetricSpec(...)})`.

    Attributes:
        metric_fn: takes `predictions`, `labels` or `targets` and, with a `weight_key`, `weights`,
            in the singular too, or else these in this order; labels come first if the first
            argument has their name. Returns the pair (value, update) of a metric of `tf.metrics`.
        prediction_key: which of the predictions; None takes them all, or the only one.
        label_key: which of the labels; None as above.
        weight_key: the feature that has the weights; None for none.

    Source: `tf.contrib.learn.MetricSpec` of TensorFlow 1.
    """

    metric_fn: Callable[..., Any]
    prediction_key: str | None = None
    label_key: str | None = None
    weight_key: str | None = None

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """Returns the pair of a metric; `inputs` are the features."""
        predictions = _chosen(predictions, self.prediction_key)
        arguments = {"predictions": predictions, "labels": _chosen(labels, self.label_key)}
        if self.weight_key is not None:
            arguments["weights"] = inputs[self.weight_key]
        if takes(self.metric_fn, **arguments):
            return self.metric_fn(**arguments)
        names = [*inspect.signature(self.metric_fn).parameters]
        roles = {name: role for role in arguments for name in names if name in _ROLES[role]}
        named = {name: arguments[role] for name, role in roles.items()}
        needed = arguments.keys() - {"labels"}
        if needed <= {*roles.values()} and takes(self.metric_fn, **named):
            return self.metric_fn(**named)
        given = [*arguments.values()]  # other names: the original went by the order
        if names and roles.get(names[0]) == "labels":
            given[:2] = arguments["labels"], predictions
        elif self.weight_key is None and not takes(self.metric_fn, *given):
            given = [predictions]
        return self.metric_fn(*given)


def with_metrics(estimator: Any, metrics: Mapping[Any, Any]) -> Any:
    """Returns an estimator that reports more metrics, as `Experiment` takes them."""

    def metric_fn(features: Any, labels: Any, predictions: Any) -> dict[str, Any]:
        operations = {}
        for key, metric in metrics.items():
            name, prediction = key if isinstance(key, tuple) else (key, None)
            spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, prediction)
            operations[name] = spec.create_metric_ops(features, labels, predictions)
        return operations

    return tf_estimator.add_metrics(estimator, metric_fn)


def _chosen(values: Any, key: str | None) -> Any:
    if key is not None:
        return values[key]
    is_lone = isinstance(values, Mapping) and len(values) == 1
    return next(iter(values.values())) if is_lone else values


def take_arrays(estimator: Any) -> Any:
    """Gives an estimator methods that take arrays; TensorFlow lets no class do so."""
    for method in (fit, evaluate, predict):
        setattr(estimator, method.__name__, functools.partial(method, estimator))
    return estimator


def predict_as_then(estimator: Any) -> None:
    """Gives a premade estimator the predictions of `tf.contrib.learn`: classes and scores are [N].

    Classes are numbers unless there is a vocabulary. What is exported does not change.
    """
    name = internals.ESTIMATOR_CALL_MODEL_FN.name
    original = getattr(estimator, name)

    def call_model_fn(*args: Any, **named: Any) -> Any:
        spec = original(*args, **named)
        now = spec.predictions or {}
        then = {
            key: tf1.squeeze(value, 1)
            for key, value in now.items()
            if key in (PredictionKey.CLASSES, PredictionKey.SCORES) and value.shape[1:] == [1]
        }
        if PredictionKey.CLASSES in then and now[PredictionKey.CLASSES].op.type == "AsString":
            then[PredictionKey.CLASSES] = tf1.squeeze(now["class_ids"], 1)
        return spec._replace(predictions={**now, **then})

    setattr(estimator, name, call_model_fn)


def fit(estimator: Any, x: Any = None, y: Any = None, input_fn: Any = None, **named: Any) -> Any:
    """Trains for `steps` or up to `max_steps`, by an input function or arrays x and y [N, ...]."""
    input_fn = input_fn or _reader(estimator, x, y, named)
    return estimator.train(input_fn, named.pop("monitors", None), **named)


def evaluate(
    estimator: Any, x: Any = None, y: Any = None, input_fn: Any = None, **named: Any
) -> Any:
    """Returns the metrics, by an input function or once over arrays; `metrics` are further ones."""
    if callable(x):  # tf.estimator's first argument is the input function
        input_fn = x
    input_fn = input_fn or _reader(estimator, x, y, named, num_epochs=1, shuffle=False)
    if metrics := named.pop("metrics", None):
        estimator = with_metrics(estimator, metrics)
    return tf_estimator.Estimator.evaluate(estimator, input_fn, **named)


def predict(estimator: Any, x: Any = None, *args: Any, input_fn: Any = None, **named: Any) -> Any:
    """Yields the predictions, a dict for each row, of an input function or arrays x [N, ...].

    `outputs` are the keys of the predictions to return, by default all of them. With
    `as_iterable=False` they are in a list.
    """
    if callable(x):  # tf.estimator's first argument is the input function
        input_fn = x
    elif input_fn is None:
        input_fn = _reader(estimator, x, None, named, num_epochs=1, shuffle=False)
    if "outputs" in named:
        named["predict_keys"] = named.pop("outputs")
    is_iterable = named.pop("as_iterable", True)
    predictions = tf_estimator.Estimator.predict(estimator, input_fn, *args, **named)
    return predictions if is_iterable else [*predictions]


class SKCompat:
    """`tf.contrib.learn.SKCompat`: an estimator with scikit-learn's methods, for arrays."""

    def __init__(self, estimator: Any) -> None:
        """Takes an estimator of `learn` or of `tf.estimator`."""
        self._estimator = estimator

    def fit(self, x: Any, y: Any, batch_size: int = 128, **named: Any) -> Any:
        """Trains for `steps` or up to `max_steps`, and returns itself."""
        fit(self._estimator, x, y, batch_size=batch_size, **named)
        return self

    def score(self, x: Any, y: Any, batch_size: int = 128, **named: Any) -> Any:
        """Returns the metrics of one pass over the arrays."""
        return evaluate(self._estimator, x, y, batch_size=batch_size, **named)

    def predict(self, x: Any, batch_size: int = 128, outputs: Any = None) -> dict[str, Any]:
        """Returns name → predictions [N, ...]."""
        rows = [*predict(self._estimator, x, batch_size=batch_size, predict_keys=outputs)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


class PredictionKey:
    """`tf.contrib.learn.PredictionKey`: names of predictions, of the estimators of now."""

    CLASSES = "classes"
    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    LOGISTIC = "logistic"
    SCORES = "predictions"


class ProblemType:
    """`tf.contrib.learn.ProblemType`, for `ModelFnOps(output_alternatives=...)`."""

    UNSPECIFIED, CLASSIFICATION, LINEAR_REGRESSION, LOGISTIC_REGRESSION = range(4)


def infer_real_valued_columns_from_input(x: Any) -> list[Any]:
    """Returns the numeric columns of an array [N, ...], named "", or of a dict of arrays."""
    arrays = x if isinstance(x, Mapping) else {"": x}
    return [
        tf1.feature_column.numeric_column(name, np.shape(arrays[name])[1:] or (1,))
        for name in sorted(arrays)
    ]


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """Returns what `Dataset.apply` takes, to make batches and leave out a smaller last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Any, padding_values: Any = None
) -> Callable[[Any], Any]:
    """Returns what `Dataset.apply` takes, to make padded batches of the same number of rows."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def _reader(estimator: Any, x: Any, y: Any, named: dict[str, Any], **options: Any) -> Any:
    """Returns an input function of arrays, and takes `batch_size` from the arguments.

    The premade estimators of then called a feature that is one array "". Without options it
    shuffles for ever, each pass by itself.
    """
    features = x if isinstance(x, Mapping) or isinstance(estimator, Estimator) else {"": x}
    first = next(iter(x.values())) if isinstance(x, Mapping) else x
    size = named.pop("batch_size", None) or len(first)
    if options:
        return tf1.estimator.inputs.numpy_input_fn(features, y, size, **options)
    arrays = _arrays(features) if y is None else (_arrays(features), _arrays(y))
    return functools.partial(_shuffled, arrays, size)


def _arrays(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _arrays(part) for name, part in values.items()}
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind == "U" else array  # TensorFlow takes ASCII only


def _shuffled(arrays: Any, size: int) -> Any:
    """Returns batches of arrays [N, ...], which a graph need not hold; passes do not mix."""
    leaves = tf1.nest.flatten(arrays)
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ConfigurationError(f"x and y must have as many rows each, but have {sorted(counts)}")
    [count] = counts

    def rows(numbers: Any) -> Any:
        types = [tf1.as_dtype(leaf.dtype) for leaf in leaves]
        parts = tf1.numpy_function(lambda at: [leaf[at] for leaf in leaves], [numbers], types)
        for part, leaf in zip(parts, leaves, strict=True):
            part.set_shape([None, *leaf.shape[1:]])
        return tf1.nest.pack_sequence_as(arrays, parts)

    return tf1.data.Dataset.range(count).shuffle(count).batch(size).repeat().map(rows)


class Estimator(tf_estimator.v1.Estimator):  # type: ignore[misc]
    """`tf.contrib.learn.Estimator`, for model functions that `tf.estimator` does not take.

    They may call the labels `targets`, leave `mode` out, and return `ModelFnOps` or the tuple
    (predictions, loss, train_op).
    """

    def __init__(
        self, model_fn: Any, model_dir: Any = None, config: Any = None, params: Any = None
    ):
        def as_now(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
            directory = self.model_dir
            named = taken(model_fn, mode=mode, params=params, config=config, model_dir=directory)
            made = model_fn(features, labels, **named)
            return made if isinstance(made, tf_estimator.EstimatorSpec) else ModelFnOps(mode, *made)

        super().__init__(as_now, model_dir, config, params)
        take_arrays(self)


def ModelFnOps(
    mode: str, *ops: Any, output_alternatives: Mapping[Any, Any] | None = None, **named: Any
) -> Any:
    """Returns the `EstimatorSpec`; each of the `output_alternatives` becomes a signature."""
    outputs = {
        name or "serving_default": tf_estimator.export.PredictOutput(tensors)
        for name, (_, tensors) in (output_alternatives or {}).items()
    }
    return tf_estimator.v1.EstimatorSpec(mode, *ops, export_outputs=outputs or None, **named)


def InputFnOps(features: Any, labels: Any, default_inputs: Any) -> Any:
    """Returns the receiver of a serving input function; `labels` were None in all of them."""
    export = tf_estimator.export
    is_named = isinstance(features, Mapping)
    kind = export.ServingInputReceiver if is_named else export.TensorServingInputReceiver
    return kind(features, default_inputs)


def read_batch_features(
    file_pattern: Any,
    batch_size: int,
    features: Any,
    reader: Any = None,
    randomize_input: bool = True,
    num_epochs: int | None = None,
    queue_capacity: Any = None,
    feature_queue_capacity: Any = None,
    reader_num_threads: Any = None,
    num_enqueue_threads: Any = None,
    parse_fn: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Returns a batch of parsed features, shuffled unless `randomize_input` is false.

    `parse_fn` makes the serialized example of what is read. The sizes of queues mean nothing to a
    Dataset.
    """

    def records(files: Any) -> Any:
        found = tf1.data.TFRecordDataset(files, reader_op.get_attr("compression_type"))
        return found if parse_fn is None else found.map(parse_fn)

    with tf1.Graph().as_default():  # the reader alone knows how the files are compressed
        reader_op = (reader or tf1.TFRecordReader)().reader_ref.op
    dataset = tf1.data.experimental.make_batched_features_dataset(
        file_pattern,
        batch_size,
        features,
        records,
        num_epochs=num_epochs,
        shuffle=randomize_input,
    )
    iterator = tf1.data.make_initializable_iterator(dataset)
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def crossed_column(columns: Any, hash_bucket_size: int, combiner: str = "sum", **named: Any) -> Any:
    """Returns the column; today's takes the key of a column that hashes, in place of itself."""
    keys = [
        column.key if hasattr(column, "hash_bucket_size") and hasattr(column, "key") else column
        for column in columns
    ]
    return tf1.feature_column.crossed_column(keys, hash_bucket_size, **named)


def embed_sequence(
    ids: Any, vocab_size: Any = None, embed_dim: Any = None, unique: bool = False, **named: Any
) -> Any:
    """Returns the embeddings of ids; `unique` only saved lookups."""
    scope = named.pop("scope", None)
    reuse = named.pop("reuse", None)
    with tf1.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        table = tf1.get_variable("embeddings", [vocab_size, embed_dim], **named)
        return tf1.nn.embedding_lookup(table, ids)


def bow_encoder(
    ids: Any, vocab_size: int, embed_dim: int, sparse_lookup: bool = True, **named: Any
) -> Any:
    """Returns the mean of the embeddings [batch, embed_dim] of ids [batch, length].

    A sparse lookup leaves out ids that are 0, as ids of a dense tensor, and is for sparse ones.
    """
    scope = named.pop("scope", None)
    reuse = named.pop("reuse", None)
    is_sparse = isinstance(ids, tf1.SparseTensor)
    if is_sparse and not sparse_lookup:
        raise TypeError("bow_encoder: sparse ids need sparse_lookup=True")
    with tf1.variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        table = tf1.get_variable("embeddings", [vocab_size, embed_dim], **named)
        if not sparse_lookup:
            return tf1.reduce_mean(tf1.nn.embedding_lookup(table, ids), axis=1)
        sparse = ids if is_sparse else tf1.sparse.from_dense(ids)
        return tf1.nn.safe_embedding_lookup_sparse([table], sparse, default_id=0, combiner="mean")


def forward_features(estimator: Any, keys: Any = None, sparse_default_values: Any = None) -> Any:
    """Returns an estimator that predicts, and serves, features beside its own predictions."""
    defaults = sparse_default_values or {}
    chosen = [keys] if isinstance(keys, str) else keys

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        forwarded = {key: features[key] for key in chosen or features}
        for key in defaults.keys() & forwarded:
            forwarded[key] = tf1.sparse.to_dense(features[key], defaults[key])
        for output in (spec.export_outputs or {}).values():
            if isinstance(output, tf_estimator.export.PredictOutput):
                output.outputs.update(forwarded)
        return spec._replace(predictions={**(spec.predictions or {}), **forwarded})

    return tf_estimator.Estimator(model_fn, estimator.model_dir, estimator.config)


def list_devices() -> list[str]:
    """Returns the names of the devices that TensorFlow computes on."""
    return [device.name for device in tf1.config.list_logical_devices()]
