"""Inputs that are damaged, mistaken or hostile, and what the library makes of them.

Each input is a file or an argument that is good but for what `_mutations` does to it: contracts,
distributions, `custom_config`, hyperparameters, experiment configurations, bundles, module files,
TFRecords, schemas, statistics, eval configs, event files, reports, TF_CONFIG, the command line. It
is read in a process that takes one after another, as long as it lives. Good is

- clear: an error of the library's own, whose message says more than its name;
- right: no error, and what was read is what is in the input.

Bad is raw (another library's error), wrong (read as something else), hang (no end within the limit)
and crash (the process died).

    python -m benchmarks.input_campaign [--inputs 10000] [--seed 0] [--only contract_yaml]

Prints one line for each bad input, which `--first N --inputs 1` repeats alone, and one in the end.
Exits with 1 if there is a bad one. Linux only. Needs TFX, as the executor does.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3")
os.environ["GENERIC_TRAINER_CACHE_DIR"] = "off"

import tensorflow as tf
import yaml
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tfx.components.util import tfxio_utils  # noqa: F401 - takes the first executor's time
from tfx.types import artifact_utils, standard_artifacts
from tfx_bsl.tfxio.dataset_options import TensorFlowDatasetOptions

from benchmarks._artifacts import (
    SCHEMA,
    artifact_at,
    exec_properties,
    output_artifacts,
    write_examples,
)
from benchmarks._mutations import (
    change_bytes,
    change_records,
    change_text,
    change_value,
    change_zip,
)
from generic_trainer import (
    Distribution,
    ServingContract,
    cli,
    data,
    training,
    user_code,
    validation,
)
from generic_trainer.errors import GenericTrainerError
from generic_trainer.executors import GenericTrainerExecutor
from generic_trainer.trials import run_fn_from_trial
from generic_trainer.trials.experiment import HParams
from generic_trainer.trials.keras import TFKerasTrial

LIMIT_S = 60.0
MEMORY_BYTES = 16 << 30  # of address space: what asks for more gets a MemoryError, or crashes
ARENAS = 4  # of malloc, which would have 8 for each processor, and 64 MiB of address space for each
_M_ARENA_MAX = -8
STACKS = "stacks.txt"
OPTIONS = TensorFlowDatasetOptions(batch_size=4, num_epochs=1, shuffle=False, label_key="y")
MODULE = '''"""A trainer."""
import os
from helper import VALUE

def run_fn(fn_args):
    """Trains nothing."""
    for name in os.listdir("."):
        if len(name) > 1000:
            raise ValueError(name)
    return VALUE * (1 + 2)
'''
FILES = {
    "trainer.py": MODULE.encode(),
    "helper.py": b"VALUE = 14\n",
    "lib/a.py": b"",
    "lib/b.txt": b"",
}
CONTRACT = {
    "examples": "eval/*", "schema": "schema.pbtxt", "base_model": "/models/1",
    "signatures": ["predict", {"name": "serving_default", "inputs": {"examples": "string[None]"},
                               "outputs": {"score": "float32[None, 1]"}}],
    "label_keys": ["tips"], "max_latency_ms": 20.5, "max_memory_mb": 500, "allowed_ops": ["Print"],
    "denied_ops": ["PyFunc"], "severities": {"latency": "warn", "memory": "skip"}, "rehearse": True,
    "format": "saved_model", "examples_transformed": False,
}  # fmt: skip
CONTRACT_OF_PROTOS = {
    "examples": [{"base64": "AAEC"}, {"base64": ""}],
    "schema": {"proto_text": SCHEMA},
    "eval_config": {"proto_text": "model_specs { label_key: 'y' }"},
}
DISTRIBUTIONS = (
    {"launcher": "local", "num_workers": 3, "parameter_servers": 1, "cpus_per_worker": 1.5,
     "gpus_per_worker": 0, "memory_mb_per_worker": 512, "max_failures": 2, "timeout_s": 60.5,
     "preemption_grace_s": 3, "heartbeat_s": None, "env": {"A": "b", "TF_USE_LEGACY_KERAS": "1"}},
    {"launcher": "ray", "num_workers": 2, "ray": {"address": "auto", "connect_timeout_s": 5,
                                                  "runtime_env": {"pip": ["x"]}}},
    {"launcher": "tfjob", "gpu_type": "amd.com/gpu", "tfjob": {
        "image": "a/b:1", "namespace": "n", "service_account": "s", "volumes": {"claim": "/mnt"},
        "node_selector": {"a": "b"}, "labels": {"c": "d"}}},
)  # fmt: skip
HYPERPARAMETERS = {
    "space": [
        {"class_name": "Float", "config": {"name": "rate", "min_value": 0.1, "max_value": 1}}
    ],
    "values": {"rate": 0.5, "units": 16, "kind": "relu"},
}
EXPERIMENT = {
    "description": "x", "scheduling_unit": 10, "records_per_epoch": 100,
    "checkpoint_policy": "best",
    "min_validation_period": {"batches": 5}, "min_checkpoint_period": {"epochs": 1},
    "hyperparameters": {
        "global_batch_size": 4, "rate": {"type": "log", "minval": -3, "maxval": -1, "base": 10},
        "units": {"type": "int", "minval": 1, "maxval": 4, "count": 2},
        "drop": {"type": "double", "minval": 0.0, "maxval": 0.5, "count": 2},
        "kind": {"type": "categorical", "vals": ["a", "b"]}, "c": {"type": "const", "val": 1},
    },
    "searcher": {"name": "grid", "metric": "loss", "smaller_is_better": True, "max_trials": 2,
                 "max_length": {"batches": 4}},
    "resources": {"slots_per_trial": 1}, "reproducibility": {"experiment_seed": 3},
}  # fmt: skip
CLUSTER = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}


class Reached(Exception):
    """Everything was accepted up to the user's code."""


class Wrong(Exception):
    """An input was read as something that it is not."""


class NeverBuilt(TFKerasTrial):
    """A trial whose configuration alone is of interest."""

    def __init__(self, context: Any) -> None:
        raise Reached

    build_model = build_training_data_loader = build_validation_data_loader = __init__


def require(is_so: bool, what: object) -> None:
    """Raises `Wrong` unless it is so."""
    if not is_so:
        raise Wrong(what)


def any_text(value: Any, dice: random.Random, dump: Callable[[Any], str] = json.dumps) -> str:
    """Returns a changed value as text, or its text changed."""
    if dice.random() < 0.6:
        with contextlib.suppress(ValueError, yaml.YAMLError):  # numbers of 5,000 digits
            return dump(change_value(value, dice))
    return change_text(dump(value), dice)


def as_yaml(value: Any) -> str:
    """Returns YAML as people write it."""
    return str(yaml.safe_dump(value, sort_keys=False))


def written(path: Path, content: str | bytes, dice: random.Random) -> str:
    """Writes a file, or, once in a while, something else in its place; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = dice.randrange(60)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path)
    elif kind == 2:
        path.touch()
    elif kind != 3:
        path.write_bytes(
            content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        )
    return str(path)


def contract_json(folder: Path, dice: random.Random) -> None:
    """The execution property `contract`."""
    text = any_text(dice.choice((CONTRACT, CONTRACT_OF_PROTOS)), dice)
    contract = ServingContract.from_json(text)
    require(ServingContract.from_json(contract.to_json()) == contract, text)


def contract_yaml(folder: Path, dice: random.Random) -> None:
    """The file behind `--contract`."""
    text = any_text(dice.choice((CONTRACT, CONTRACT_OF_PROTOS)), dice, as_yaml)
    path = folder / "contract.yaml"
    contract = ServingContract.from_yaml(written(path, text, dice))
    (folder / "again.yaml").write_text(contract.to_json())
    require(ServingContract.from_yaml(folder / "again.yaml") == contract, text)


def distribution(folder: Path, dice: random.Random) -> None:
    """The execution property `distribution`."""
    text = any_text(dice.choice(DISTRIBUTIONS), dice)
    read = Distribution.from_json(text)
    require(Distribution.from_json(read.to_json()) == read, text)
    require(isinstance(read.num_processes, int), read)


def bundle(folder: Path, dice: random.Random) -> None:
    """The zip that a worker unpacks, with and without a digest."""
    module = folder / "code" / "trainer.py"
    for name, content in FILES.items():
        (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "code" / name).write_bytes(content)
    code = user_code.bundle_module_file(str(module), str(folder / "bundles"))
    packed = Path(code.bundle or "")
    content = packed.read_bytes()
    packed.unlink()
    damaged = change_zip(FILES, dice) if dice.random() < 0.5 else change_bytes(content, dice)
    written(packed, damaged, dice)
    digest = dice.choice((code.digest, None))
    # Without a digest it may say anything: whatever its code does is the user's.
    with user_code.user_function(
        user_code.UserCode("trainer", bundle=str(packed), digest=digest)
    ) as function:
        if digest:
            require(user_code.call_user_function(function, None, code) == 42, "another result")


def module_file(folder: Path, dice: random.Random) -> None:
    """The argument `module_file`, also inside of a zip; nothing of it is run."""
    changed = change_text(MODULE, dice).encode("utf-8", "surrogatepass")
    if dice.random() < 0.3:
        changed = change_bytes(MODULE.encode(), dice)
    if dice.random() < 0.3:
        archive = written(folder / "code.zip", change_zip(FILES, dice), dice)
        user_code.bundle_module_file(f"{archive}/trainer.py", str(folder / "bundles"))
        return
    (folder / "helper.py").write_bytes(FILES["helper.py"])
    path = written(folder / "trainer.py", changed, dice)
    code = user_code.bundle_module_file(path, str(folder / "bundles"))
    require(Path(code.bundle or "").exists(), "no bundle")


def records(folder: Path, dice: random.Random) -> None:
    """TFRecord files, through the reader, the counter and what the checks read."""
    good = [example(float(number)) for number in range(20)]
    if dice.random() < 0.5:
        path = folder / dice.choice(("data", "data.tfrecord"))
        content = change_records(good, dice)
    else:
        compression = dice.choice(("", "GZIP", "GZIP"))
        path = folder / dice.choice(("data", "data.gz"))
        with tf.io.TFRecordWriter(str(folder / "good"), compression) as writer:
            for record in good:
                writer.write(record)
        content = change_bytes((folder / "good").read_bytes(), dice)
        (folder / "good").unlink()
    written(path, content, dice)
    pattern = str(folder / "*")
    how = dice.randrange(4)
    if how == 0:
        data.count_examples(pattern)
    elif how == 1:
        validation.read_records(pattern, 10)
    else:
        read_all(pattern, text_format.Parse(SCHEMA, schema_pb2.Schema()), how)


def read_all(pattern: str, schema: Any, how: int) -> None:
    """Reads examples as a `run_fn` does, from memory or as a stream."""
    factory = data.make_dataset_factory(path="stream" if how == 2 else "auto")
    with data.explain_read_errors():
        for features, label in factory(pattern, OPTIONS, schema):
            tensors = features.get("x"), label
            is_dense = all(isinstance(tensor, tf.Tensor) for tensor in tensors)
            if is_dense and features["x"].shape == label.shape:
                require(bool(tf.reduce_all(2 * features["x"] == label)), "other numbers")


def example(x: float) -> bytes:
    """Returns a serialized tf.Example with x and y = 2 x."""
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in {"x": x, "y": 2 * x}.items()
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def schema(folder: Path, dice: random.Random) -> None:
    """A schema that parses, and says something else of the examples."""
    changed = text_format.Parse(SCHEMA, schema_pb2.Schema())
    feature = changed.feature[dice.randrange(2)]
    sizes = (-1, 0, 1, 2, 1000, 10**5, 10**8, 10**11, 2**40, 2**62, 2**63 - 1)
    kind = dice.randrange(7)
    if kind == 0:
        feature.shape.dim[0].size = dice.choice(sizes)
    elif kind == 1:
        for _ in range(dice.choice((1, 3, 300))):
            feature.shape.dim.add().size = dice.choice(sizes)
    elif kind == 2:
        feature.type = dice.choice(schema_pb2.FeatureType.values())
    elif kind == 3:
        feature.name = dice.choice(("", "x", "y", "\0", "a" * 5000))
    elif kind == 4:
        feature.ClearField("shape")
        feature.value_count.min = dice.choice(sizes)
        feature.value_count.max = dice.choice(sizes)
    elif kind == 5:
        feature.ClearField("presence")
        feature.presence.min_fraction = dice.choice((-1.0, 0.0, 0.5, float("nan"), 7.0))
    else:
        group = changed.tensor_representation_group[""]
        representation = group.tensor_representation["x"].dense_tensor
        representation.column_name = dice.choice(("x", "nothing", ""))
        representation.default_value.float_value = 1.0
        representation.shape.dim.add().size = dice.choice(sizes)
    with tf.io.TFRecordWriter(str(folder / "data")) as writer:
        for number in range(20):
            writer.write(example(float(number)))
    read_all(str(folder / "data"), changed, dice.choice((2, 3)))


def experiment(folder: Path, dice: random.Random) -> None:
    """The configuration of a trial, as YAML or within `custom_config`."""
    config: Any = {
        "experiment_config": written(folder / "x.yaml", any_text(EXPERIMENT, dice, as_yaml), dice)
    }
    if dice.random() < 0.3:
        config = change_value(EXPERIMENT, dice)
        if not isinstance(config, dict):
            return
    values = dice.choice((None, {"values": {"rate": 1}}, change_value(HYPERPARAMETERS, dice)))
    run_fn_from_trial(NeverBuilt)(
        SimpleNamespace(
            custom_config=config, hyperparameters=values, schema_path=None,
            transform_graph_path=None,
            model_run_dir=str(folder / "run"), checkpoint_dir=str(folder / "checkpoints"),
            serving_model_dir=str(folder / "export"),
        )
    )  # fmt: skip


def hparams(folder: Path, dice: random.Random) -> None:
    """The texts that `HParams` takes."""
    known = HParams(rate=0.1, layers=[64, 32], name="x", flag=True)
    if dice.random() < 0.5:
        known.parse(change_text("rate=0.2,layers=[1,2],name=abc,flag=false", dice))
    else:
        known.parse_json(
            any_text({"rate": 0.2, "layers": [1, 2], "name": "a", "flag": False}, dice)
        )
    found = known.values()
    require(isinstance(found["rate"], float) and isinstance(found["flag"], bool), found)


def tf_config(folder: Path, dice: random.Random) -> None:
    """The cluster in the environment."""
    text = any_text(CLUSTER, dice).replace("\0", "")
    os.environ["TF_CONFIG"] = text.encode("utf-8", "replace").decode()
    try:
        training.is_chief()
    finally:
        del os.environ["TF_CONFIG"]


def report(folder: Path, dice: random.Random) -> None:
    """`report.json` of a ModelRun."""
    good = {
        "passed": False, "model_dir": "/m", "facts": {"size_bytes": 1},
        "results": [
            {"name": "loads", "status": "fail", "message": "m", "remedy": "r", "seconds": 1}
        ],
    }  # fmt: skip
    read = validation.ValidationReport.from_json(any_text(good, dice))
    read.summary()
    read.to_html()


def executor(folder: Path, dice: random.Random) -> None:
    """The inputs and properties of the executor, one of them changed, up to `run_fn`."""
    module = folder / "trainer.py"
    module.write_text("def run_fn(fn_args):\n    raise RuntimeError('reached')\n")
    inputs = {"examples": [write_examples(folder / "examples")]}
    properties = exec_properties({"rate": 0.1}, module_file=str(module))
    kind = dice.randrange(7)
    if kind == 0:
        properties["custom_config"] = any_text({"a": [1, {"b": None}], "rate": 0.1}, dice)
    elif kind == 1:
        properties[dice.choice(("train_args", "eval_args"))] = any_text(
            {"num_steps": 5, "splits": ["train"]}, dice
        )
    elif kind == 2:
        properties["eval_config"] = any_text(
            {"model_specs": [{"label_key": "y"}], "slicing_specs": [{}]}, dice
        )
    elif kind == 3:
        path = folder / "tuned" / "best_hyperparameters.txt"
        written(path, any_text(HYPERPARAMETERS, dice), dice)
        inputs["hyperparameters"] = [artifact_at(standard_artifacts.HyperParameters, path.parent)]
    elif kind == 4:
        stats = statistics_pb2.DatasetFeatureStatisticsList()
        stats.datasets.add().num_examples = dice.choice((5, 2**63, 2**64 - 1))
        path = folder / "statistics" / "Split-train" / "FeatureStats.pb"
        written(path, change_bytes(stats.SerializeToString(), dice), dice)
        artifact = artifact_at(standard_artifacts.ExampleStatistics, folder / "statistics")
        artifact.split_names = artifact_utils.encode_split_names(["train"])
        inputs["statistics"] = [artifact]
    elif kind == 5:
        path = folder / "graph" / dice.choice(("metadata", "transformed_metadata")) / "schema.pbtxt"
        written(path, change_text(SCHEMA, dice), dice)
        inputs["transform_graph"] = [
            artifact_at(standard_artifacts.TransformGraph, folder / "graph")
        ]
    else:
        (found,) = (folder / "examples" / "Split-eval").iterdir()
        content = change_bytes(found.read_bytes(), dice)
        found.unlink()
        written(found, content, dice)
    try:
        GenericTrainerExecutor().Do(inputs, output_artifacts(folder / "out"), properties)
    except GenericTrainerError as error:
        if "reached" not in str(error):
            raise


def event_files(folder: Path, dice: random.Random) -> None:
    """What a `run_fn` leaves for TensorBoard; a whole run, which bad event files must not stop."""
    writer = tf.summary.create_file_writer(str(folder / "events"))
    with writer.as_default():
        for step in range(4):
            tf.summary.scalar("loss", 1.0 / (1 + step), step)
    writer.close()
    (good,) = (folder / "events").iterdir()
    found = list(tf.compat.v1.io.tf_record_iterator(str(good)))
    changed = dice.choice((change_bytes(good.read_bytes(), dice), change_records(found, dice)))
    damaged = folder / good.name
    damaged.write_bytes(changed)
    module = folder / "trainer.py"
    module.write_text(
        "import os, shutil\n\ndef run_fn(fn_args):\n"
        "    os.makedirs(fn_args.serving_model_dir)\n"
        "    open(os.path.join(fn_args.serving_model_dir, 'model'), 'w').write('x')\n"
        f"    shutil.copy({str(damaged)!r}, fn_args.model_run_dir)\n"
    )
    GenericTrainerExecutor().Do(
        {"examples": [write_examples(folder / "examples")]},
        output_artifacts(folder / "out"),
        exec_properties(None, module_file=str(module), contract='{"format": "any"}'),
    )


def command_line(folder: Path, dice: random.Random) -> None:
    """`generic-trainer run` with an option or a file that is changed, up to `run_fn`."""
    module = folder / "trainer.py"
    module.write_text("def run_fn(fn_args):\n    raise RuntimeError('reached')\n")
    write_examples(folder / "examples")
    words = {"--examples": str(folder / "examples"), "--output": str(folder / "out")}
    kind = dice.randrange(7)
    if kind == 0:
        words["--custom-config"] = any_text({"a": [1, {"b": None}]}, dice)
    elif kind == 1:
        words["--distribution"] = any_text(DISTRIBUTIONS[0], dice)
    elif kind == 2:
        words["--hyperparameters"] = written(
            folder / "h.json", any_text(HYPERPARAMETERS, dice), dice
        )
    elif kind == 3:
        words["--contract"] = written(folder / "c.yaml", any_text(CONTRACT, dice, as_yaml), dice)
    elif kind == 4:
        text = change_text("model_specs {\n  label_key: 'y'\n}\nslicing_specs { }\n", dice)
        words["--eval-config"] = written(folder / "e.pbtxt", text, dice)
    elif kind == 5:
        words[dice.choice(("--train-steps", "--eval-steps"))] = str(
            dice.choice((0, -1, "x", 2**70, 1.5))
        )
    else:
        words["--examples"] = dice.choice(
            ("", "\n", "/", "[", "*", str(module), "a" * 5000, "nothing://x")
        )
    if kind == 1:  # what is right would start workers
        Distribution.from_json(words["--distribution"])
        return
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = cli.main(["run", str(module), *(w for pair in words.items() for w in pair)])
        except SystemExit as end:  # of argparse
            status = int(end.code or 0)
    require(
        status != 0 and "generic-trainer" in said.getvalue(), f"status {status}: {said.getvalue()}"
    )


# What is read → how often, of all inputs. The last three take a second each.
TARGETS: dict[Callable[[Path, random.Random], None], int] = {
    contract_json: 16, contract_yaml: 16, distribution: 16, bundle: 12, module_file: 8, records: 24,
    schema: 10, experiment: 16, hparams: 8, tf_config: 6, report: 6, executor: 6, command_line: 4,
    event_files: 1,
}  # fmt: skip


def read_input(number: int, seed: int, only: str | None, folder: Path) -> tuple[str, str]:
    """Makes and reads one input; returns the kind of outcome, and what was said."""
    target, dice = chosen(number, seed, only)
    try:
        target(folder, dice)
    except GenericTrainerError as error:
        text = str(error)
        return ("clear" if len(text) > 20 else "raw"), f"{type(error).__name__}: {text}"
    except Reached:
        return "right", ""
    except Wrong as error:
        return "wrong", str(error)
    except BaseException as error:
        return "raw", "".join(traceback.format_exception(error)[-8:])
    return "right", ""


def chosen(number: int, seed: int, only: str | None) -> tuple[Callable[..., None], random.Random]:
    """Returns what an input is for, and the chance that makes it, both by its number."""
    dice = random.Random(f"{seed}-{number}")
    targets = {each: weight for each, weight in TARGETS.items() if only in (None, each.__name__)}
    return dice.choices(list(targets), list(targets.values()))[0], dice


def work(orders: Connection, seed: int, only: str | None, root: Path) -> None:
    """Reads inputs whose numbers come through a pipe, until there are no more."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(root)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    with open(STACKS, "w") as stacks:  # which a hang is asked for, and a crash may leave
        os.dup2(stacks.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    while (number := orders.recv()) is not None:
        folder = root / str(number)
        folder.mkdir()
        orders.send(read_input(number, seed, only, folder))
        shutil.rmtree(folder, ignore_errors=True)


class Worker:
    """A process that reads inputs, and its successors."""

    def __init__(self, seed: int, only: str | None, root: Path) -> None:
        self._arguments = (seed, only, root)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def read(self, number: int) -> tuple[str, str]:
        """Returns the outcome of one input."""
        self._orders.send(number)
        try:
            if self._orders.poll(LIMIT_S):
                outcome: tuple[str, str] = self._orders.recv()
                return outcome
            os.kill(self._process.pid or 0, signal.SIGUSR1)
            time.sleep(1.0)
            outcome = "hang", f"no end within {LIMIT_S:g} s; {self._last_words()}"
        except (EOFError, ConnectionError):
            self._process.join()
            outcome = "crash", f"exit code {self._process.exitcode}; {self._last_words()}"
        self.close()
        self._start()
        return outcome

    def _last_words(self) -> str:
        root = self._arguments[2]
        words = (root / STACKS).read_text(errors="replace")
        return words.partition("Extension modules:")[0][-3000:]

    def close(self) -> None:
        """Ends the process."""
        self._orders.close()
        self._process.kill()
        self._process.join()


def main() -> int:
    """Reads the inputs, and prints those that came to a bad end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(target.__name__ for target in TARGETS))
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    options = parser.parse_args()
    started_s = time.perf_counter()
    outcomes: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory(prefix="input-campaign-") as root,
        contextlib.suppress(KeyboardInterrupt),  # what has been read until then counts
    ):
        worker = Worker(options.seed, options.only, Path(root))
        for number in range(options.first, options.first + options.inputs):
            outcome, said = worker.read(number)
            outcomes[outcome] += 1
            if sum(outcomes.values()) % 500 == 0:
                print(f"{sum(outcomes.values())} inputs", file=sys.stderr, flush=True)
            if options.verbose or outcome not in ("clear", "right"):
                target, _ = chosen(number, options.seed, options.only)
                print(f"input {number} ({target.__name__}): {outcome}: {said}", flush=True)
        worker.close()
    bad = sum(outcomes[kind] for kind in ("raw", "wrong", "hang", "crash"))
    counts = ", ".join(
        f"{outcomes[kind]} {kind}" for kind in ("clear", "right", "raw", "wrong", "hang", "crash")
    )
    minutes = (time.perf_counter() - started_s) / 60
    print(f"{sum(outcomes.values())} inputs, seed {options.seed}: {counts}; {minutes:.1f} min")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
