"""Do the warm-up requests that TF Serving will replay work?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer._core.records import read_records
from generic_trainer.errors import DataError
from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, skip
from generic_trainer.validation._scoring import call, first_line

__all__ = ["warmup"]

_FILE = Path("assets.extra/tf_serving_warmup_requests")
_MAX_REQUESTS = 100
_REMEDY = "write the requests again from examples that the signature takes, or delete the file"


@check("warmup", needs=("loads", "devices"))
def warmup(model: ModelUnderTest) -> Iterator[Finding]:
    """Every warm-up request of the model can be answered."""
    if _FILE not in model.files:
        yield skip(f"no {_FILE}")
        return
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        yield skip("the package tensorflow-serving-api, which reads the requests, is missing")
        return
    try:
        records = read_records(str(model.directory / _FILE), _MAX_REQUESTS)
        requests = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    except Exception as error:
        reason = str(error) if isinstance(error, DataError) else first_line(error)
        yield fail(f"{_FILE} cannot be read: {reason}", _REMEDY)
        return
    for index, request in enumerate(requests):
        yield from _replay(model, index, request)


def _replay(model: ModelUnderTest, index: int, request: Any) -> Iterator[Finding]:
    kind = request.WhichOneof("log_type")
    if kind not in ("predict_log", "classify_log", "regress_log"):
        yield note(f"request {index} is a {kind}: not replayed")
        return
    body = getattr(request, kind).request
    name = body.model_spec.signature_name or "serving_default"
    if name not in model.signatures:
        yield fail(f"request {index} asks for signature {name!r}, which is missing", _REMEDY)
        return
    try:
        call(model.loaded.signatures[name], _inputs(model, kind, name, body))
    except Exception as error:
        yield fail(f"request {index} to signature {name!r}: {first_line(error)}", _REMEDY)


def _inputs(model: ModelUnderTest, kind: str, name: str, body: Any) -> dict[str, np.ndarray]:
    import tensorflow as tf

    if kind == "predict_log":
        return {key: tf.make_ndarray(value) for key, value in body.inputs.items()}
    examples = body.input.example_list.examples
    records = np.array([example.SerializeToString() for example in examples], dtype=object)
    return dict.fromkeys(model.signatures[name].inputs, records)
