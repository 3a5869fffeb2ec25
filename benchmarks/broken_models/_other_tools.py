"""What other tools say of models: runs in whichever Python has them, a line for each model.

    python _other_tools.py TOOL ... < directories

Reads directories from standard input, one a line, and writes for each one line of JSON: tool → what
it complains of, empty for nothing. Each tool gets a process of its own for each model, forked from
one that has imported TensorFlow, and so many seconds:

- `cli_show`: `saved_model_cli show --all` must read the model, and `scan` must not name an op;
- `cli_run`: `saved_model_cli run` must call serving_default with two rows;
- `cli_scan`: `scan` alone must not name an op;
- `call`: so must `tf.saved_model.load`;
- `beside_functions`: the same in a program with a `tf.py_function`, which writes into `$CANARY`;
- `tflite`: so must TFLite's interpreter, with `model.tflite`;
- `session`: so must a graph session, which has loaded the model, with its warm-up requests as well:
  what TF Serving's loader does for an InfraValidator, as far as Python can do it;
- `modelscan`: the scanner of that name must find no issue and no error;
- `modelaudit`: the scanner of that name must find no issue that is at least a warning;
- `mlflow`: MLflow must load the SavedModel as a pyfunc, and predict two rows.

Whoever calls a model needs rows: those of the tests' own example where it takes text, and ones
elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

_TIMEOUT_S = 20.0
_ROWS = 2
_WARMUP = "assets.extra/tf_serving_warmup_requests"


def _example() -> bytes:
    import tensorflow as tf

    feature = {
        "miles": tf.train.Feature(float_list={"value": [1.5]}),
        "payment": tf.train.Feature(bytes_list={"value": [b"cash"]}),
        "company": tf.train.Feature(int64_list={"value": [3]}),
    }
    return bytes(tf.train.Example(features={"feature": feature}).SerializeToString())


def _inputs(model_dir: str) -> dict[str, Any]:
    """Returns two rows for serving_default, by what it declares."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.saved_model import loader_impl

    proto = loader_impl.parse_saved_model(model_dir)
    serving = next(each for each in proto.meta_graphs if "serve" in each.meta_info_def.tags)
    if "serving_default" not in serving.signature_def:
        raise LookupError("no serving_default")
    inputs = {}
    for name, info in serving.signature_def["serving_default"].inputs.items():
        dtype = tf.as_dtype(info.dtype)
        dims = [dim.size if dim.size >= 0 else _ROWS for dim in info.tensor_shape.dim]
        values = _example() if dtype == tf.string else np.ones([], dtype.as_numpy_dtype)
        inputs[name] = np.full(dims, values, dtype=object if dtype == tf.string else None)
    return inputs


def _cli_show(model_dir: str) -> None:
    _cli("show", "--all", "--dir", model_dir)
    _cli_scan(model_dir, "--tag_set", "serve")


def _cli_scan(model_dir: str, *tags: str) -> None:
    with tempfile.TemporaryFile("w+") as output, contextlib.redirect_stdout(output):
        _cli("scan", "--dir", model_dir, *tags)
        output.seek(0)
        said = output.read()
    if "contains the following denylisted ops" in said:
        raise ValueError(said.strip().splitlines()[-1])


def _cli_run(model_dir: str) -> None:
    import numpy as np

    inputs = _inputs(model_dir)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "inputs.npz")
        np.savez(
            file,
            **{
                key: value.astype("S") if value.dtype == object else value
                for key, value in inputs.items()
            },
        )
        named = ";".join(f"{key}={file}[{key}]" for key in inputs)
        _cli(
            "run",
            "--dir",
            model_dir,
            "--tag_set",
            "serve",
            "--signature_def",
            "serving_default",
            "--inputs",
            named,
        )


def _cli(*arguments: str) -> None:
    from tensorflow.python.tools import saved_model_cli

    sys.argv = ["saved_model_cli", *arguments]
    try:
        saved_model_cli.main()
    except SystemExit as ended:  # it ends its process in any case
        if ended.code:
            raise


def call(model_dir: str) -> None:
    """Loads a model and calls it."""
    import tensorflow as tf

    inputs = _inputs(model_dir)
    signature = tf.saved_model.load(model_dir).signatures["serving_default"]
    signature(**{key: tf.constant(value) for key, value in inputs.items()})


def _beside_functions(model_dir: str) -> None:
    """The same in a program that has a `tf.py_function`; the first gets the token `pyfunc_0`."""
    import tensorflow as tf

    def write(x: Any) -> Any:
        Path(os.environ["CANARY"]).write_text("written")
        return x

    with tf.Graph().as_default() as graph:
        tf.numpy_function(write, [tf.constant(1.0)], tf.float32)
    call(model_dir)
    del graph  # with which the function ends


def _tflite(model_dir: str) -> None:
    import numpy as np
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(str(Path(model_dir, "model.tflite")))
    run = interpreter.get_signature_runner("serving_default")
    run(**{name: np.ones([1, 2], np.float32) for name in run.get_input_details()})


def _session(model_dir: str) -> None:
    import tensorflow as tf

    file = Path(model_dir, _WARMUP)
    read = tf.compat.v1.io.tf_record_iterator
    in_session(model_dir, list(read(str(file))) if file.exists() else [])


def in_session(model_dir: str, records: list[bytes]) -> None:
    """Loads a model into a session, and calls it with two rows and with warm-up requests."""
    import tensorflow as tf

    v1 = tf.compat.v1
    inputs = _inputs(model_dir)
    with v1.Session(graph=tf.Graph()) as session:
        signatures = v1.saved_model.load(session, ["serve"], model_dir).signature_def

        def run(name: str, rows: dict[str, Any]) -> None:
            signature = signatures[name]
            fetched = [info.name for info in signature.outputs.values()]
            fed = {signature.inputs[key].name: value for key, value in rows.items()}
            session.run(fetched, fed)

        run("serving_default", inputs)
        for record in records:
            from tensorflow_serving.apis import prediction_log_pb2

            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            rows = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            run(request.model_spec.signature_name or "serving_default", rows)


def _modelscan(model_dir: str) -> None:
    from modelscan.modelscan import ModelScan

    scan = ModelScan()
    scan.scan(Path(model_dir))
    found = [str(issue.details.operator) for issue in scan.issues.all_issues] + list(
        map(str, scan.errors)
    )
    if found:
        raise ValueError("; ".join(found)[:200])


def _modelaudit(model_dir: str) -> None:
    from modelaudit.core import scan_model_directory_or_file

    found = scan_model_directory_or_file(model_dir, cache_enabled=False).issues
    severe = [each.message for each in found if str(each.severity.value) in ("warning", "critical")]
    if severe:
        raise ValueError("; ".join(severe)[:200])


def _mlflow(model_dir: str) -> None:
    import mlflow
    import yaml

    inputs = _inputs(model_dir)
    flavors = {
        "python_function": {"loader_module": "mlflow.tensorflow"},
        "tensorflow": {
            "model_type": "tf1-estimator", "saved_model_dir": model_dir,
            "meta_graph_tags": ["serve"], "signature_def_key": "serving_default",
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "MLmodel").write_text(yaml.safe_dump({"flavors": flavors}))
        mlflow.pyfunc.load_model(folder).predict(inputs)


_TOOLS: dict[str, tuple[Callable[[str], None], str]] = {
    "cli_show": (_cli_show, "tensorflow.python.tools.saved_model_cli"),
    "cli_scan": (_cli_scan, "tensorflow.python.tools.saved_model_cli"),
    "cli_run": (_cli_run, "tensorflow.python.tools.saved_model_cli"),
    "call": (call, "tensorflow"),
    "beside_functions": (_beside_functions, "tensorflow"),
    "tflite": (_tflite, "tensorflow"),
    "session": (_session, "tensorflow_serving.apis.prediction_log_pb2"),
    "modelscan": (_modelscan, "modelscan.modelscan"),
    "modelaudit": (_modelaudit, "modelaudit.core"),
    "mlflow": (_mlflow, "mlflow.tensorflow"),
}


def _in_a_fork(tool: Callable[[str], None], model_dir: str) -> str:
    """Returns what a tool complains of, or how its process ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = ""
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        signal.alarm(int(_TIMEOUT_S))
        try:
            tool(model_dir)
        except SystemExit as error:
            told = f"exit code {error.code}" if error.code else ""
        except BaseException as error:
            told = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:150]}"
        os.write(writer, told.encode(errors="replace"))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return told or (f"ended by signal {status}" if status else "")


def main() -> None:
    """Answers line by line."""
    tools = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(2, 1)
    for tool in tools:
        importlib.import_module(_TOOLS[tool][1])
    for line in sys.stdin:
        started = time.monotonic()
        complaints = {tool: _in_a_fork(_TOOLS[tool][0], line.strip()) for tool in tools}
        complaints["seconds"] = f"{time.monotonic() - started:.1f}"
        os.write(answers, (json.dumps(complaints) + "\n").encode())


if __name__ == "__main__":
    main()
