"""Jobs: a training run and its workers as plain data; also as JSON, and packed with user code.

The executor turns TFX's dictionaries of artifacts into one `TrainingRequest`; the floors below do
not know artifacts. A request is frozen and holds only plain values, so it can be logged, compared
and sent to another process, which gets equal values. For machines that others set up it is packed,
in a message or in a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from generic_trainer._core.cluster import Task
from generic_trainer._core.files import (
    FAILED_SUFFIX,
    absolute,
    absolute_pattern,
    delete_tree,
    gfile,
    is_remote,
    read_whole,
    write_whole,
)
from generic_trainer._core.keras import same_keras
from generic_trainer._core.progress import LOG_FILE
from generic_trainer._core.texts import parse_eval_config
from generic_trainer._core.tfx_names import FORMAT_TF_EXAMPLE
from generic_trainer._core.values import from_json, to_json
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.user_code import UserCode, read_bundle
from generic_trainer.validation import ServingContract

# Inside the Model artifact.
_STAGING_DIR = ".staging"
# Beside the artifacts of the node, whose directories TFX deletes when a step fails.
_CHECKPOINTS_DIR = ".checkpoints"
_MODEL_RUN = "model_run"
# What Vertex adds to the name of a node.
_EXECUTION = re.compile(r"_(-\d+|\d{12,})$")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# In the directory that is kept of a failed run.
REJECTED_DIR = "rejected_export"
# Settings of TensorFlow, Keras and this package, which have to be the same everywhere. TF_ alone
# would not do: Terraform keeps passwords and tokens in variables that begin so (TF_VAR_, TF_TOKEN_,
# TF_CLI_, TF_HTTP_, TF_DATA_DIR, TF_LOG, ...).
_CARRIED = re.compile(
    "GENERIC_TRAINER_|KERAS_|TF_(AUTO_MIXED|AUTOTUNE|BFC|CLUSTER|CONV2D|COORDINATOR|CPP|CPU|CUBLAS|"
    "CUDA|CUDNN|CUFFT|DATA_EXPERIMENT|DEBUG|DETERMINISTIC|DEVICE|DISABLE|DUMP_GRAPH|EAGER|ENABLED?|"
    "FORCE|FORWARD|FP16|FUNCTION|GPU|GRAPH|GRPC|JIT|MATMUL|MIN_GPU|MKL|NUM|ONEDNN|OVERRIDE|"
    "PER_DEVICE|PSS?|RUN_HANDLER|SET_ONEDNN|SYNC|TPU|TRT|USE|WORKER|XLA)_"
)
# They concern this machine, or this process.
_NOT_CARRIED = ("TF_GRPC_REUSE_PORT", "TF_FORCE_GPU_ALLOW_GROWTH")


_T = TypeVar("_T")
# Each field of a `TrainingRequest` says whether `parts_of_run_key` has it. What decides the result
# of `run_fn` has to be there: otherwise a run would go on from the checkpoints of another one.
InRunKey = Annotated[_T, "in the run key"]
NotInRunKey = Annotated[_T, "not in the run key"]


@dataclasses.dataclass(frozen=True)
class ExamplesFormat:
    """How the records of the Examples artifacts are encoded.

    Attributes:
        payload_format: a value of `tfx.proto.example_gen_pb2.PayloadFormat`.
        data_view_uri: the DataView that decodes `FORMAT_PROTO` records, if one is attached.
    """

    payload_format: int
    data_view_uri: str | None = None

    @property
    def is_tf_example(self) -> bool:
        """Whether the records are serialized `tf.Example`s."""
        return self.payload_format == FORMAT_TF_EXAMPLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """All parameters of one training run.

    Relative paths become absolute: `run_fn` may change the directory of its process.

    Attributes:
        user_code: the module of `run_fn`.
        train_files: file patterns of the splits to train on.
        eval_files: file patterns of the splits to evaluate on.
        split_files: split name → file patterns, for every split that all Examples artifacts have.
        examples_format: how the records in these files are encoded.
        model_dir: URI of the Model artifact.
        model_run_dir: URI of the ModelRun artifact.
        scratch_dir: a local directory that is deleted after the run.
        train_steps: number of batches to train on; None leaves it to `run_fn`.
        eval_steps: number of batches to evaluate on; None means all.
        schema_path: file of the Schema artifact.
        transform_graph_path: directory of the TransformGraph artifact.
        base_model: directory of the SavedModel to start from.
        hyperparameters: a `keras_tuner.HyperParameters` config.
        custom_config: the dictionary given to the component.
        num_examples: split name → number of examples, if a statistics artifact has them.
        raw_examples: URIs of the Examples artifacts, in tf.Example format, that the transform graph
            was made from, if the pipeline has them.
        statistics_path: pattern of that artifact's files.
        extra_inputs: input name → URIs of its artifacts.
        contract: requirements on the export; None means those of any consumer.
        eval_config: the `tfma.EvalConfig` of the Evaluator downstream.
        consumers: ids of the nodes of the pipeline that read the outputs of this one; empty if the
            orchestrator does not provide them.
        sign_with: file of the private key that signs the model, where it is published.
        run_key: names the runs that may go on from each other's checkpoints; see
            `generic_trainer._run.run_key`.
        seed: of the reader's shuffle, unless `run_fn` gives another; the same in all runs of the
            same `run_key`.
    """

    user_code: InRunKey[UserCode]
    train_files: InRunKey[tuple[str, ...]]
    eval_files: InRunKey[tuple[str, ...]]
    split_files: NotInRunKey[Mapping[str, tuple[str, ...]]]
    examples_format: InRunKey[ExamplesFormat]
    model_dir: NotInRunKey[str]
    model_run_dir: NotInRunKey[str]
    scratch_dir: NotInRunKey[str]
    train_steps: InRunKey[int | None] = None
    eval_steps: InRunKey[int | None] = None
    schema_path: InRunKey[str | None] = None
    transform_graph_path: InRunKey[str | None] = None
    base_model: InRunKey[str | None] = None
    hyperparameters: InRunKey[Mapping[str, Any] | None] = None
    custom_config: InRunKey[Mapping[str, Any] | None] = None
    num_examples: InRunKey[Mapping[str, int] | None] = None
    raw_examples: NotInRunKey[tuple[str, ...]] = ()
    statistics_path: NotInRunKey[str | None] = None
    extra_inputs: InRunKey[Mapping[str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)
    contract: NotInRunKey[ServingContract | None] = None
    eval_config: NotInRunKey[Any] = None
    consumers: NotInRunKey[tuple[str, ...]] = ()
    sign_with: NotInRunKey[str | None] = None
    run_key: NotInRunKey[str] = "unnamed"
    seed: NotInRunKey[int | None] = None

    def __post_init__(self) -> None:
        for made_absolute, names in ((_absolute, _PATHS), (absolute_pattern, _PATTERNS)):
            for name in names:
                object.__setattr__(self, name, _each(made_absolute, getattr(self, name)))
        object.__setattr__(self, "extra_inputs", _each(_absolute_path, self.extra_inputs))

    @property
    def staging_dir(self) -> str:
        """Directory of the chief's files until they are published; locked while its run lives."""
        return os.path.join(self.model_dir, _STAGING_DIR)

    @property
    def export_dir(self) -> str:
        """Directory of the export until it is published, on the file system of its destination.

        It ends with the number of the run: modules take it from `serving_model_dir`, in which TFX
        has it at this place, to name their own folders.
        """
        return os.path.join(self.staging_dir, os.path.basename(self.model_dir.rstrip("/")))

    @property
    def failed_run_dir(self) -> str:
        """Directory for the files kept of a failed run, beside the ModelRun artifact."""
        return self.model_run_dir.rstrip("/") + FAILED_SUFFIX

    @property
    def rejected_export_dir(self) -> str:
        """Directory for the exports of a failed run."""
        return os.path.join(self.failed_run_dir, REJECTED_DIR)

    @property
    def checkpoint_dir(self) -> str:
        """Directory of the checkpoints of `run_fn`; outlives a failed run."""
        return self.checkpoint_dir_of(self.run_key)

    def checkpoint_dir_of(self, run_key: str) -> str:
        """Returns the directory of the checkpoints of another run of the node."""
        return os.path.join(_node_dir(self.model_run_dir), _CHECKPOINTS_DIR, run_key)

    @property
    def log_path(self) -> str:
        """File with the output of `run_fn`."""
        return os.path.join(self.model_run_dir, LOG_FILE)


_PATHS = (
    *("user_code", "examples_format", "model_dir", "model_run_dir", "scratch_dir", "schema_path"),
    *("transform_graph_path", "base_model", "raw_examples", "sign_with"),
)
_PATTERNS = ("train_files", "eval_files", "split_files", "statistics_path")


def _absolute(path: str) -> str:
    return absolute(path) if path and not os.path.isabs(path) else path


def _absolute_path(uri: str) -> str:
    """Returns a URI that is a local path as an absolute one; others name models of a service."""
    return _absolute(uri) if os.path.exists(uri) else uri


def _each(function: Callable[[str], str], value: Any) -> Any:
    """Returns a value with a function applied to each path in it."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, tuple):
        return tuple(_each(function, item) for item in value)
    if isinstance(value, Mapping):
        return {name: _each(function, item) for name, item in value.items()}
    if isinstance(value, UserCode):
        return dataclasses.replace(value, bundle=_each(function, value.bundle))
    if isinstance(value, ExamplesFormat):
        return dataclasses.replace(value, data_view_uri=_each(function, value.data_view_uri))
    return value


# Field of a request → the functions that return its value for JSON, and from it.
_CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "user_code": (dataclasses.asdict, lambda values: UserCode(**values)),
    "examples_format": (dataclasses.asdict, lambda values: ExamplesFormat(**values)),
    "contract": (ServingContract.to_json, ServingContract.from_json),
    "eval_config": (str, parse_eval_config),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run and its workers.

    Attributes:
        request: the run.
        fn_args_factory: import path, `"module:function"`, of the function that builds the argument
            of `run_fn` from the request and the directory to export into. A path, because other
            machines import it too.
        distribution: the workers and their launcher.
        export_fn_dir: local directory that `export_fn` exports into, in a job that only exports: a
            rehearsal, or a repaired export of trained weights; None for a job that trains.
        has_trained: whether that export is of trained weights.
        serves: whether the single task of the job is a server of `ParameterServerStrategy`, whose
            cluster is in `TF_CONFIG`.
    """

    request: TrainingRequest
    fn_args_factory: str
    distribution: Distribution = dataclasses.field(default_factory=Distribution)
    export_fn_dir: str | None = None
    has_trained: bool = False
    serves: bool = False

    def make_fn_args(self, export_dir: str) -> Any:
        """Calls the factory.

        Args:
            export_dir: directory that the model directories go into.
        """
        return pkgutil.resolve_name(self.fn_args_factory)(self.request, export_dir)

    def to_json(self) -> str:
        """Returns the job as JSON that keeps the types of all values.

        A value that JSON cannot hold (a proto in `custom_config`, for example) is pickled inside.
        """
        request = dict(vars(self.request))
        distribution = self.distribution.to_json()
        for name, (encoded, _) in _CODECS.items():
            if request[name] is not None:
                request[name] = encoded(request[name])
        return to_json({**vars(self), "request": request, "distribution": distribution})

    @classmethod
    def from_json(cls, text: str, *, is_ours: bool = True) -> Job:
        """Reads the result of `to_json`.

        Args:
            text: the JSON.
            is_ours: whether only this user can have written it. Only then is anything unpickled.

        Raises:
            ValueError: it is not such a text, or has a pickle inside and may be another user's.
        """
        values = from_json(text, is_ours=is_ours)
        request = values["request"]
        for name, (_, decoded) in _CODECS.items():
            if request[name] is not None:
                request[name] = decoded(request[name])
        values["request"] = TrainingRequest(**request)
        values["distribution"] = Distribution.from_json(values["distribution"])
        return cls(**values)


def _node_dir(model_run_dir: str) -> str:
    """Returns the directory that all executions of a node share, from the directory of one.

    The directory kept of a failed execution counts as its own.

    1. TFX's own orchestrators: `<root>/<node>/model_run/<execution>` → `<root>/<node>`.
    2. Kubeflow and Vertex: `<root>/<run>/<task>/model_run` → `<root>/<node>`, where Vertex names a
       task by its node and a random 64-bit number (`Trainer_-3145728`). A short number is part of
       the node's own name (`Trainer_2`). Newer Kubeflow has a UUID between task and `model_run`.
    3. Anything else: the parent directory.
    """
    parent, name = os.path.split(model_run_dir.rstrip("/").removesuffix(FAILED_SUFFIX))
    if os.path.basename(parent) == _MODEL_RUN:
        return os.path.dirname(parent)
    if name != _MODEL_RUN:
        return parent
    if _UUID.fullmatch(os.path.basename(parent)):
        parent = os.path.dirname(parent)
    run, task = os.path.split(parent)
    return os.path.join(os.path.dirname(run), _EXECUTION.sub("", task))


def with_carried_environment(job: Job) -> Job:
    """Returns the job with this process's TensorFlow and Keras settings in `distribution.env`.

    `TF_USE_LEGACY_KERAS=1` at the start of a pipeline is meant for its workers too: they get the
    `tf.keras` of this process.
    """
    carried = {
        name: value
        for name, value in os.environ.items()
        if _CARRIED.match(name) and name not in _NOT_CARRIED
    }
    env = {**carried, **same_keras(), **job.distribution.env}
    return dataclasses.replace(job, distribution=dataclasses.replace(job.distribution, env=env))


def pack(job: Job) -> dict[str, Any]:
    """Returns the job and its bundle as plain values, for `unpack`.

    Raises:
        ModuleFileError: the bundle cannot be read.
    """
    return {"job": with_carried_environment(job).to_json(), "bundle": _bundle(job)}


def unpack(packed: dict[str, Any], directory: str) -> Job:
    """Returns the job, with the user's code in a file of this machine.

    Args:
        packed: what `pack` returned.
        directory: an existing local directory.
    """
    return _with_bundle(Job.from_json(packed["job"]), packed["bundle"], directory)


class JobFolder:
    """A folder on the pipeline root by which a job and its workers exchange files.

    It contains `job.json`, the user's code, and `<task>-<index>.json` after the end of a worker.

    Attributes:
        path: local or remote.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, job: Job, launcher: str, mounts: Iterable[str]) -> str:
        """Packs a job for workers of other machines.

        Args:
            job: the job.
            launcher: name of the launcher, for messages.
            mounts: local directories that the workers see under the same path.

        Returns:
            The digest of the job, for `read`. It must reach the workers in another way.

        Raises:
            ConfigurationError: the workers cannot see the folder.
            ModuleFileError: the user's code cannot be read.
        """
        mounted = list(mounts)
        if not is_remote(self.path) and not any(
            os.path.commonpath([self.path, mount]) == os.path.normpath(mount) for mount in mounted
        ):
            raise ConfigurationError(
                f"launcher={launcher!r}: the workers cannot see the pipeline root: {self.path} is "
                f"neither remote nor below a mounted volume ({mounted or 'there are none'}). Use a "
                "bucket (gs://..., s3://...) as pipeline root, or a file system that is mounted "
                "here and there under the same path, in Kubernetes with volumes={'claim': '/path'} "
                "of its options.",
                path=self.path,
            )
        bundle = _bundle(job)
        gfile().makedirs(self.path)
        text = _with_bundle(job, bundle, self.path).to_json().encode()
        write_whole(self._file("job"), text)
        return hashlib.sha256(text).hexdigest()

    def read(self, digest: str) -> Job:
        """Returns the job, after comparing its digest: reading another job could run code.

        Args:
            digest: what `write` returned.

        Raises:
            ConfigurationError: it is not the job that was written.
        """
        path = self._file("job")
        text = read_whole(path)
        actual = hashlib.sha256(text).hexdigest()
        if actual != digest:
            raise ConfigurationError(
                f"{path} is not the job that this worker was started for: expected the SHA-256 "
                f"{digest}, found {actual}. Another program has written it: check the permissions "
                "of the pipeline root, and run the pipeline again.",
                path=path,
            )
        return Job.from_json(text.decode())

    def end_of(self, task: Task) -> str:
        """Returns the path of the file into which a worker writes how it ended."""
        return self._file(f"{task.type}-{task.index}")

    def forget_end(self, task: Task) -> None:
        """Deletes that file, if it exists."""
        if gfile().exists(path := self.end_of(task)):
            gfile().remove(path)

    def is_deleted(self) -> bool:
        """Returns whether the folder was deleted, at the end of the job.

        Raises:
            Exception: that is unknown. The class depends on the file system.
        """
        path = self._file("job")
        if is_remote(path):
            return not gfile().exists(path)
        try:  # a file system of a network may answer from a cache, unless the file is opened
            with open(path, "rb"):
                return False
        except FileNotFoundError:
            return True

    def delete(self) -> None:
        """Deletes the folder."""
        delete_tree(self.path)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, f"{name}.json")


def _bundle(job: Job) -> bytes | None:
    """Returns the zip with the user's code; None if it is installed."""
    code = job.request.user_code
    return None if code.bundle is None else read_bundle(code).to_zip()


def _with_bundle(job: Job, bundle: bytes | None, directory: str) -> Job:
    """Writes the user's code into a directory, and returns the job that finds it there."""
    code = job.request.user_code
    if bundle is None or code.bundle is None:
        return job
    path = os.path.join(directory, os.path.basename(code.bundle))
    write_whole(path, bundle)
    code = dataclasses.replace(code, bundle=path)
    return dataclasses.replace(job, request=dataclasses.replace(job.request, user_code=code))
