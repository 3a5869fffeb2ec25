"""The parser that TFX's reader makes of a data view: the graph that decodes a user's own records.

A data view (`tfx.components.experimental.data_view`) is a saved function from serialized records to
tensors. Columns are kept of it where it makes one row of each record, the same one whatever records
are beside it; else it decodes anew in every epoch, as with TFX.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import files_below, fingerprint_of_file
from generic_trainer._core.records import READ_ERRORS, RecordFile, record_dataset
from generic_trainer.data._columns import SEPARATORS, lengths_of
from generic_trainer.data._layout import make_layout
from generic_trainer.data._lists import row_splits
from generic_trainer.data._parser import MappedParser, check_label
from generic_trainer.errors import ConfigurationError

NOT_BY_ROW = "the data view does not make a row of each record"
# Ops that give other values each time: `RandomUniform`, `StatefulUniformInt`, ...
_DRAWS = re.compile(r"Random|Multinomial|^Stateful(?!PartitionedCall)")
_SAMPLE_RECORDS = 32


@dataclasses.dataclass(frozen=True)
class ViewParser(MappedParser):
    """Turns batches of serialized records into what TFX's reader delivers through a data view.

    Attributes:
        features: tensor → the `tf.io` configuration that describes what is decoded.
        decoder: tfx_bsl's, loaded. It has no tables and no variables: no data view can.
        fingerprint: what distinguishes the decoder from others.
        fault: why its tensors cannot be kept, as far as it can be seen without a record.
    """

    decoder: Any
    fingerprint: str
    fault: str | None

    @classmethod
    def from_uri(cls, uri: str) -> ViewParser:
        """Loads a data view, without a label.

        Raises:
            ConfigurationError: it cannot be loaded, or tfx_bsl does not take its tensors.
        """
        from tfx_bsl.coders import tf_graph_record_decoder
        from tfx_bsl.tfxio import tensor_to_arrow

        try:
            saved = tf.saved_model.load(uri)
            decoder = tf_graph_record_decoder.LoadedDecoder(saved)
            specs = decoder.output_type_specs()
            tensor_to_arrow.TensorsToRecordBatchConverter(specs)
            prints = [[name, fingerprint_of_file(f"{uri}/{name}")] for name in files_below(uri)]
        except Exception as error:  # whatever an unknown op, or what is no decoder, raises
            raise ConfigurationError(f"{uri}: tfx_bsl cannot use the data view: {error}") from error
        features = {name: _feature_of(spec) for name, spec in specs.items()}
        names = {name: name for name in features}
        fault = _fault(decoder, saved.decode_fun.graph, features)
        return cls(features, names, None, decoder, json.dumps(prints), fault)

    def with_label(self, label_key: str | None) -> ViewParser:
        """Returns the parser with a label, which `ConfigurationError` says is no tensor of it."""
        check_label(label_key, self.features)
        return dataclasses.replace(self, label_key=label_key)

    def options(self, options: Any) -> Any:
        # TFX leaves the number to `tf.data`, by which it chooses the order of several files.
        return options._replace(reader_num_threads=tf.data.AUTOTUNE)

    def nested(self) -> AbstractSet[str]:
        return {
            name
            for name, spec in self.decoder.output_type_specs().items()
            if isinstance(spec, tf.RaggedTensorSpec) and spec.shape.rank > 2
        }

    def parse(self, serialized: tf.Tensor) -> dict[str, Any]:
        return dict(self.decoder.decode_record(serialized))

    def parse_lists(self, serialized: tf.Tensor) -> dict[str, Any]:
        """Parses as `Parser.parse_lists` does; an error where there is not a row of each record."""
        rows = tf.size(serialized, tf.int64)
        parsed = self.parse(serialized)
        tensors = [(parsed[name], feature) for name, feature in self.features.items()]
        # One assertion: tracing one for each tensor takes longer than reading a small data set.
        conditions = [each for pair in tensors for each in _conditions(*pair, rows)]
        is_as_stored = tf.reduce_all(tf.concat(conditions, axis=0))
        with tf.control_dependencies([tf.debugging.Assert(is_as_stored, [NOT_BY_ROW])]):
            rows = tf.identity(rows)
        return {
            name: _as_stored(tensor, rows, feature)
            for name, (tensor, feature) in zip(self.features, tensors, strict=True)
        }

    def reason_to_stream(self, files: Sequence[RecordFile]) -> str | None:
        if self.fault or not files:
            return self.fault
        dataset = record_dataset(files[0].path, files[0].compression)
        layout = make_layout(self, SEPARATORS[0], frozenset())

        def packed(records: tf.Tensor) -> list[np.ndarray]:
            arrays, _ = layout.pack(self.parse_lists(records))
            return [np.asarray(array) for array in arrays]

        try:
            sample = next(iter(dataset.take(_SAMPLE_RECORDS).batch(_SAMPLE_RECORDS)), None)
            if sample is None:
                return None
            self.parse(sample)
        except READ_ERRORS:
            return None  # which reading the records explains
        try:
            whole = packed(sample)
            pieces = [packed(piece) for piece in (sample[:1], sample[1:4], sample[4:])]
        except READ_ERRORS:
            return NOT_BY_ROW
        for array, parts in zip(whole, zip(*pieces, strict=True), strict=True):
            if array.tobytes() != b"".join(part.tobytes() for part in parts):
                return "the data view makes of a record what depends on those beside it"
        return None

    def values_of(self, record: bytes) -> dict[str, list[tf.train.Feature | None]]:
        return {}

    def key(self) -> str:
        return f"data view {self.fingerprint}"


def _feature_of(spec: Any) -> Any:
    """Returns the `tf.io` configuration whose tensors have this spec; None: there is none."""
    inner = spec.shape[1:]
    if isinstance(spec, tf.RaggedTensorSpec):
        is_known = spec.shape[spec.ragged_rank + 1 :].is_fully_defined()
        known = tf.io.RaggedFeature(spec.dtype, row_splits_dtype=spec.row_splits_dtype)
        return known if is_known else None
    if isinstance(spec, tf.SparseTensorSpec) and inner.as_list() == [None]:
        return tf.io.VarLenFeature(spec.dtype)
    if not inner.is_fully_defined():
        return None
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.io.SparseFeature([], "", spec.dtype, inner.as_list())
    return tf.io.FixedLenFeature(inner.as_list(), spec.dtype)


def _fault(decoder: Any, graph: tf.Graph, features: Mapping[str, Any]) -> str | None:
    if decoder.record_index_tensor_name is not None:
        return "the data view makes any number of rows of a record"
    unknown = sorted(name for name, feature in features.items() if feature is None)
    if unknown:
        return f"the data view does not say the shape of {', '.join(unknown)}"
    proto = graph.as_graph_def()
    nodes = [*proto.node, *(node for each in proto.library.function for node in each.node_def)]
    drawn = sorted({node.op for node in nodes if "seed" in node.attr or _DRAWS.search(node.op)})
    return f"the data view draws random values ({', '.join(drawn)})" if drawn else None


def _as_stored(tensor: Any, rows: tf.Tensor, feature: Any) -> Any:
    """Returns a tensor as a layout takes it: lists as ragged ones."""
    if not isinstance(feature, tf.io.VarLenFeature):
        return tensor
    splits = row_splits(tensor.indices[:, 0], rows)
    return tf.RaggedTensor.from_row_splits(tensor.values, splits, validate=False)


def _conditions(tensor: Any, feature: Any, rows: tf.Tensor) -> Iterator[tf.Tensor]:
    """Yields what is true, bool [n], of a tensor that is as the layout thinks."""
    if isinstance(tensor, tf.RaggedTensor):
        yield tf.equal(tf.shape(tensor.row_splits, tf.int64), tf.expand_dims(rows + 1, 0))
        return
    if not isinstance(tensor, tf.SparseTensor):
        yield tf.equal(tf.shape(tensor, tf.int64), tf.stack([rows, *feature.shape]))
        return
    of_row = tensor.indices[:, 0]
    steps = lengths_of(of_row)
    yield steps >= 0
    yield of_row < rows
    if isinstance(feature, tf.io.SparseFeature):
        yield tf.equal(tensor.dense_shape, tf.stack([rows, *feature.size]))
        return
    places = tf.concat([[-1], tensor.indices[:, 1]], axis=0)
    starts = tf.concat([tf.ones_like(of_row[:1]), steps], axis=0) > 0
    yield tf.equal(places[1:], tf.where(starts, tf.zeros_like(of_row), places[:-1] + 1))
    yield tf.equal(tensor.dense_shape, tf.stack([rows, tf.reduce_max(places) + 1]))
