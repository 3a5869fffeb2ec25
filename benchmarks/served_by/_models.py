"""Writes models with ops, attributes and dtypes that are new in some release of TensorFlow.

    python _models.py DIRECTORY

Runs in an environment that has the newest TensorFlow and nothing of this repository. Each model has
one signature, whose input `x` is float32 [batch, 4]. Prints `name: reason` of each that TensorFlow
cannot save.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as xla

raw: Any = tf.raw_ops
Step = Callable[[Any], Any]  # of [batch, 4] float32, which is not negative
_QUANTISED = {
    "quantization_min_val": -128, "quantization_max_val": 127,
}  # fmt: skip
_LHS = {f"lhs_{key}": value for key, value in _QUANTISED.items()}
_RHS = {f"rhs_{key}": value for key, value in _QUANTISED.items()}
_OUTPUT = {f"output_{key}": value for key, value in _QUANTISED.items()}


def _quantised(x: Any) -> Any:
    return raw.UniformQuantize(
        input=x, scales=0.1, zero_points=0, Tout=tf.qint8, **_QUANTISED
    )  # fmt: skip


def _dequantised(x: Any) -> Any:
    return raw.UniformDequantize(
        input=x, scales=0.1, zero_points=0, Tout=tf.float32, **_QUANTISED
    )  # fmt: skip


def _ids(x: Any) -> Any:
    return tf.range(tf.shape(x)[0])


def _complex(x: Any) -> Any:
    return tf.cast(x, tf.complex64)


def _fft(op: Any, x: Any, **more: Any) -> Any:
    return tf.abs(op(input=x, fft_length=[4], axes=[1], **more))


def _images(x: Any) -> Any:
    return tf.reshape(x, [-1, 2, 2, 1])


def _size(op: Any, **arguments: Any) -> Any:
    """Returns the number of elements of a dataset that an op makes."""
    return raw.DatasetCardinality(input_dataset=op(**arguments))


def _shaped(op: Any, dtype: Any = tf.int64, **arguments: Any) -> Any:
    """Returns the same of an op that takes the types of the elements."""
    shapes = {"output_types": [dtype], "output_shapes": [tf.TensorShape([])]}
    return _size(op, **shapes, **arguments)


def _numbers() -> Any:
    return tf.data.Dataset.range(3)._variant_tensor


@tf.function
def _is_even(x: Any) -> Any:
    return x % 2 == 0


@tf.function
def _same(x: Any) -> Any:
    return x


def _branch(x: Any) -> Any:
    return tf.cond(tf.size(x) > 2, lambda: _fft(raw.FFTND, _complex(x)), lambda: x)


def _loop(x: Any) -> Any:
    return tf.while_loop(
        lambda number, _: number < 2,
        lambda number, y: (number + 1, _fft(raw.FFTND, _complex(y))),
        (0, x),
    )[1]


def _cast(dtype: str) -> Step:
    return lambda x: tf.cast(tf.cast(x, getattr(tf.dtypes.experimental, dtype)), tf.float32)


def _module(version: int) -> Step:
    """Returns a step of a StableHLO module of two rows."""
    rows = "tensor<2x4xf32>"
    text = f"module {{ func.func public @main(%a: {rows}) -> {rows} {{ return %a : {rows} }} }}"
    return lambda x: xla.xla_call_module(
        args=[tf.ensure_shape(x, [2, 4])], version=version, module=text.encode(), Sout=[[2, 4]],
        Tout=[tf.float32], platforms=["CPU"],
    )[0]  # fmt: skip


STEPS: dict[str, Step] = {
    "approximate top k": lambda x: raw.ApproxTopK(input=x, k=2)[0],
    "random index shuffle": lambda x: raw.RandomIndexShuffle(index=1, seed=[1, 2, 3], max_index=9),
    "segment sum v2": lambda x: raw.SegmentSumV2(data=x, segment_ids=_ids(x), num_segments=2),
    "segment product v2": lambda x: raw.SegmentProdV2(data=x, segment_ids=_ids(x), num_segments=2),
    "segment maximum v2": lambda x: raw.SegmentMaxV2(data=x, segment_ids=_ids(x), num_segments=2),
    "segment minimum v2": lambda x: raw.SegmentMinV2(data=x, segment_ids=_ids(x), num_segments=2),
    "stateless gamma": lambda x: x * raw.StatelessRandomGammaV3(
        shape=[4], key=[1], counter=[1, 2], alg=1, alpha=2.0),
    "stateless shuffle": lambda x: raw.StatelessShuffle(value=x, key=[1], counter=[1, 2], alg=1),
    "uniform quantised": lambda x: _dequantised(_quantised(x)),
    "uniform requantised": lambda x: _dequantised(raw.UniformRequantize(
        input=_quantised(x), input_scales=0.1, input_zero_points=0, output_scales=0.1,
        output_zero_points=0, Tout=tf.qint8, input_quantization_min_val=-128,
        input_quantization_max_val=127, **_OUTPUT)),
    "uniform quantised product": lambda x: raw.UniformQuantizedDotHybrid(
        lhs=x, rhs=_quantised(tf.eye(4)), rhs_scales=0.1, rhs_zero_points=0, Tout=tf.float32,
        **_RHS),
    "gradient of a convolution v2": lambda x: raw.Conv2DBackpropInputV2(
        input=_images(x), filter=tf.ones([1, 1, 1, 1]), out_backprop=_images(x),
        strides=[1] * 4, padding="SAME"),
    "general convolution": lambda x: raw.Conv(
        input=_images(x), filter=tf.ones([1, 1, 1, 1]), strides=[1] * 4, padding="SAME"),
    "fourier transform": lambda x: _fft(raw.FFTND, _complex(x)),
    "inverse fourier transform": lambda x: _fft(raw.IFFTND, _complex(x)),
    "real fourier transform": lambda x: _fft(raw.RFFTND, x, Tcomplex=tf.complex64),
    "inverse real fourier transform": lambda x: _fft(raw.IRFFTND, _complex(x), Treal=tf.float32),
    "ragged rows filled": lambda x: raw.RaggedFillEmptyRows(
        value_rowids=[0, 2], values=[1.0, 2.0], nrows=4, default_value=0.0)[1] * x[0, 0],
    "gradient of a sparse segment mean": lambda x: raw.SparseSegmentMeanGradV2(
        grad=x, indices=[0, 1], segment_ids=[0, 0], dense_output_dim0=2)[0],
    "gradient of a sparse segment sum": lambda x: raw.SparseSegmentSumGradV2(
        grad=x, indices=[0, 1], segment_ids=[0, 0], dense_output_dim0=2)[0],
    "image of webp": lambda x: tf.shape(raw.DecodeWebP(contents=tf.strings.as_string(x[0, 0]))),
    "image of jpeg xl": lambda x: tf.shape(raw.DecodeJxl(contents=tf.strings.as_string(x[0, 0]))),
    "optimisation barrier": lambda x: xla.xla_optimization_barrier([x])[0],
    "reduced precision": lambda x: xla.xla_reduce_precision(x, 8, 7),
    "list dataset": lambda x: _shaped(raw.ListDataset, tensors=[1, 2], dtype=tf.int32),
    "random dataset": lambda x: _shaped(
        raw.RandomDatasetV2, seed=1, seed2=2, seed_generator=raw.DummySeedGenerator(),
        rerandomize_each_iteration=False),
    "fingerprint of a dataset": lambda x: raw.DatasetFingerprint(
        input_dataset=_numbers()),
    "parallel filter": lambda x: _shaped(
        raw.ParallelFilterDataset, input_dataset=_numbers(), other_arguments=[],
        num_parallel_calls=2, predicate=_is_even.get_concrete_function(tf.TensorSpec([], tf.int64)),
        deterministic="true"),
    "shuffled by an index": lambda x: _shaped(
        raw.GlobalShuffleDataset, input_dataset=_numbers(), seed=1, seed2=2,
        seed_generator=raw.DummySeedGenerator(), reshuffle_each_iteration=False),
    "records v2": lambda x: _size(
        raw.TFRecordDatasetV2, filenames=[""], compression_type="", buffer_size=0,
        byte_offsets=[0]),
    "module of stable hlo 4": _module(4),
    "module of stable hlo 9": _module(9),
    "module of stable hlo 10": _module(10),
    "in a branch": _branch,
    "in a loop": _loop,
    # Attributes.
    "top k with long indices": lambda x: tf.cast(
        raw.TopKV2(input=x, k=2, index_type=tf.int64)[1], tf.float32),
    "top k with a long k": lambda x: raw.TopKV2(input=x, k=tf.constant(2, tf.int64))[0],
    "offsets of long shapes": lambda x: raw.ConcatOffset(
        concat_dim=0, shape=[tf.constant([2], tf.int64)] * 2)[1],
    "product with a gradient": lambda x: raw.MatMul(a=x, b=tf.eye(4), grad_b=True),
    "product of batches with a gradient": lambda x: raw.BatchMatMulV2(
        x=x, y=tf.eye(4), grad_y=True),
    "gather that ignores": lambda x: raw.GatherNd(
        params=x, indices=[[9]], bad_indices_policy="IGNORE"),
    "scatter that ignores": lambda x: raw.ScatterNd(
        indices=[[9]], updates=x[:1], shape=[2, 4], bad_indices_policy="IGNORE"),
    "map in order": lambda x: _shaped(
        raw.MapDataset, input_dataset=_numbers(), other_arguments=[],
        f=_same.get_concrete_function(tf.TensorSpec([], tf.int64)), force_synchronous=True),
    "range for each split": lambda x: _shaped(
        raw.RangeDataset, start=0, stop=3, step=1, replicate_on_split=True),
    "resized list": lambda x: tf.cast(raw.TensorListLength(input_handle=raw.TensorListSetItem(
        input_handle=tf.raw_ops.EmptyTensorList(
            element_shape=[4], max_num_elements=9, element_dtype=tf.float32),
        index=2, item=x[0], resize_if_index_out_of_bounds=True)), tf.float32),
    "sparse sum with a sparse gradient": lambda x: raw.SparseSegmentSum(
        data=x, indices=[0, 1], segment_ids=[0, 0], sparse_gradient=True),
    # Dtypes.
    "product of bytes": lambda x: tf.matmul(tf.cast(x, tf.uint8), tf.eye(4, dtype=tf.uint8)),
    "place of a maximum in 16 bits": lambda x: tf.argmax(x, 1, output_type=tf.int16),
    "one hot of bytes": lambda x: tf.one_hot(tf.cast(x[:, 0], tf.int8), 3),
    "range of 16 bits": lambda x: raw.Range(
        start=tf.cast(x[0, 0], tf.uint16), limit=tf.constant(9, tf.uint16),
        delta=tf.constant(1, tf.uint16)),
    "logarithms summed in bfloat16": lambda x: tf.cast(
        tf.math.cumulative_logsumexp(tf.cast(x, tf.bfloat16)), tf.float32),
    **{f"cast to {dtype}": _cast(dtype) for dtype in (
        "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "int4", "uint4",
        "int2", "float4_e2m1fn")},
    # Nothing new.
    "nothing new": lambda x: tf.nn.softmax(x @ tf.eye(4)),
    "products and tables": lambda x: tf.linalg.inv(tf.matmul(x, x, transpose_a=True) + tf.eye(4)),
}  # fmt: skip


def _outputs(step: Step, x: Any) -> dict[str, Any]:
    return {"y": step(x)}


def _keras() -> dict[str, Any]:
    layers = tf.keras.layers
    return {
        "keras dense": [layers.Dense(3, activation="gelu"), layers.Dense(1)],
        "keras normalised": [layers.BatchNormalization(), layers.LayerNormalization()],
        "keras recurrent": [layers.Reshape([2, 2]), layers.LSTM(3), layers.Dense(1)],
        "keras gated": [layers.Reshape([2, 2]), layers.Bidirectional(layers.GRU(3))],
        "keras convolution": [layers.Reshape([2, 2, 1]), layers.Conv2D(2, 2), layers.Flatten()],
        "keras embedding": [layers.Discretization([0.5, 1.5]), layers.Embedding(9, 2)],
        "keras crossed": [layers.Discretization([0.5]), layers.CategoryEncoding(3)],
        "keras dropout": [layers.Dropout(0.5), layers.Dense(2, activation="softmax")],
    }


def _save_v1(folder: str, strips: bool) -> None:
    """Saves a graph of TensorFlow 1; without `strips`, with the attributes that have defaults."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = tf.math.top_k(tf.matmul(x, v1.get_variable("w", [4, 4])), 2)[0]
        session.run(v1.global_variables_initializer())
        infos = (
            {key: v1.saved_model.build_tensor_info(each)} for key, each in (("x", x), ("y", y))
        )
        signature = v1.saved_model.build_signature_def(*infos, "tensorflow/serving/predict")
        builder = v1.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, strip_default_attrs=strips
        )
        builder.save()


def main() -> None:
    """Writes every model."""
    folder = Path(sys.argv[1])
    rows = tf.TensorSpec([None, 4], tf.float32, name="x")

    def save(step: Step, path: str, **others: Step) -> None:
        module = tf.Module()
        for name, each in {"serve": step, **others}.items():
            function = functools.partial(_outputs, each)
            setattr(module, name, tf.function(function, input_signature=[rows], autograph=False))
        tf.saved_model.save(module, path, signatures=module.serve)

    def save_keras(layers: list[Any], path: str) -> None:
        model = tf.keras.Sequential([tf.keras.Input([4]), *layers])
        model.export(path)

    kinds: dict[str, Callable[[str], None]] = {
        **{name: functools.partial(save, step) for name, step in STEPS.items()},
        **{name: functools.partial(save_keras, layers) for name, layers in _keras().items()},
        "never called": functools.partial(
            save, STEPS["nothing new"], other=STEPS["general convolution"]
        ),
        "v1 with default attributes": functools.partial(_save_v1, strips=False),
        "v1 without default attributes": functools.partial(_save_v1, strips=True),
    }
    for name, write in kinds.items():
        try:
            write(str(folder / name.replace(" ", "_")))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
