"""Jobs: a training run as plain data, and where it takes place; also as JSON.

The executor turns TFX's dictionaries of artifacts into one `TrainingRequest`; nothing below it
knows what an artifact is. A request is frozen and holds only plain values, so it can be logged,
compared and sent to another process, where every value is what it is here.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.protos import parse_eval_config
from generic_trainer._core.tfx_names import FORMAT_TF_EXAMPLE
from generic_trainer._core.values import from_json, to_json
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.user_code import UserCode
from generic_trainer.validation import ServingContract

# Inside the Model artifact.
_STAGING_DIR = ".staging"
# Inside the ModelRun artifact.
_LOG_FILE = "training.log"
# Beside the artifacts of the node, whose directories TFX deletes when a step fails.
_CHECKPOINTS_DIR = ".checkpoints"
_MODEL_RUN = "model_run"
# Beside the ModelRun artifact.
_FAILED_SUFFIX = ".failed"
# Inside what is kept of a failed run.
REJECTED_DIR = "rejected_export"


@dataclasses.dataclass(frozen=True)
class ExamplesFormat:
    """How the records of the Examples artifacts are encoded.

    Attributes:
        payload_format: a value of `tfx.proto.example_gen_pb2.PayloadFormat`.
        data_view_uri: the DataView that decodes `FORMAT_PROTO` records, where one is attached.
    """

    payload_format: int
    data_view_uri: str | None = None

    @property
    def is_tf_example(self) -> bool:
        """Whether the records are serialized `tf.Example`s."""
        return self.payload_format == FORMAT_TF_EXAMPLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """Everything that one training run needs to know.

    Attributes:
        user_code: where `run_fn` is found.
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
        num_examples: split name → number of examples, where a statistics artifact tells.
        raw_examples: URIs of the Examples artifacts, in tf.Example format, that the transform graph
            was made from, where the pipeline tells.
        statistics_path: pattern of that artifact's files.
        extra_inputs: input name → URIs of its artifacts.
        contract: what the export must fulfil; None requires what any consumer needs.
        eval_config: the `tfma.EvalConfig` of the Evaluator downstream.
        consumers: the nodes of the pipeline that read what this one writes, by their ids; empty
            where the orchestrator does not say.
        run_key: names the runs that may go on from each other's checkpoints; see
            `generic_trainer._run.run_key`.
        seed: what the reader shuffles with where `run_fn` does not say; the same in all runs of
            the same `run_key`.
    """

    user_code: UserCode
    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    split_files: Mapping[str, tuple[str, ...]]
    examples_format: ExamplesFormat
    model_dir: str
    model_run_dir: str
    scratch_dir: str
    train_steps: int | None = None
    eval_steps: int | None = None
    schema_path: str | None = None
    transform_graph_path: str | None = None
    base_model: str | None = None
    hyperparameters: Mapping[str, Any] | None = None
    custom_config: Mapping[str, Any] | None = None
    num_examples: Mapping[str, int] | None = None
    raw_examples: tuple[str, ...] = ()
    statistics_path: str | None = None
    extra_inputs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    contract: ServingContract | None = None
    eval_config: Any = None
    consumers: tuple[str, ...] = ()
    run_key: str = "unnamed"
    seed: int | None = None

    @property
    def staging_dir(self) -> str:
        """Where the export waits until it is published, on the file system of its destination."""
        return os.path.join(self.model_dir, _STAGING_DIR)

    @property
    def failed_run_dir(self) -> str:
        """Where the traces of a failed run are kept, beside the ModelRun artifact."""
        return self.model_run_dir.rstrip("/") + _FAILED_SUFFIX

    @property
    def rejected_export_dir(self) -> str:
        """Where the exports of a failed run are kept."""
        return os.path.join(self.failed_run_dir, REJECTED_DIR)

    @property
    def checkpoint_dir(self) -> str:
        """Where `run_fn` keeps its checkpoints; outlives a failed run."""
        return self.checkpoint_dir_of(self.run_key)

    def checkpoint_dir_of(self, run_key: str) -> str:
        """Returns where another run of the node keeps its checkpoints."""
        return os.path.join(_node_dir(self.model_run_dir), _CHECKPOINTS_DIR, run_key)

    @property
    def log_path(self) -> str:
        """Where the output of `run_fn` is kept."""
        return os.path.join(self.model_run_dir, _LOG_FILE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run, and where it takes place.

    Attributes:
        request: the run.
        fn_args_factory: import path, `"module:function"`, of what builds the argument of `run_fn`
            from the request and the directory to export into. A path, because it has to be found
            on other machines as well.
        distribution: on how many workers, and who starts them.
        export_fn_dir: local directory that `export_fn` exports into, in a job that does nothing
            else: a rehearsal, or a repaired export of trained weights; None for one that trains.
        dry_run_dir: local directory that `run_fn` may write into, in a job that trains for a moment
            to see what it exports; see `_dry_run`.
    """

    request: TrainingRequest
    fn_args_factory: str
    distribution: Distribution = dataclasses.field(default_factory=Distribution)
    export_fn_dir: str | None = None
    dry_run_dir: str | None = None

    def make_fn_args(self, export_dir: str) -> Any:
        """Calls the factory.

        Args:
            export_dir: directory that the model directories go into.
        """
        name, _, function = self.fn_args_factory.partition(":")
        # Of their imports Beam and Model Analysis say dozens of lines, which nobody can do anything
        # about.
        disabled = logging.root.manager.disable
        logging.disable(logging.INFO)
        try:
            module = importlib.import_module(name)
        finally:
            logging.disable(disabled)
        return getattr(module, function)(self.request, export_dir)

    def to_json(self) -> str:
        """Returns the job as JSON, with every value of the types that it has.

        What JSON cannot hold (a proto in `custom_config`, for example) is pickled inside it.
        """
        request, eval_config = self.request, self.request.eval_config
        return to_json(
            {
                "request": {
                    **vars(request),
                    "user_code": dataclasses.asdict(request.user_code),
                    "examples_format": dataclasses.asdict(request.examples_format),
                    "contract": request.contract and request.contract.to_json(),
                    "eval_config": eval_config if eval_config is None else str(eval_config),
                },
                "fn_args_factory": self.fn_args_factory,
                "distribution": self.distribution.to_json(),
                "export_fn_dir": self.export_fn_dir,
                "dry_run_dir": self.dry_run_dir,
            }
        )

    @classmethod
    def from_json(cls, text: str, *, is_ours: bool = True) -> Job:
        """Reads what `to_json` wrote.

        Args:
            text: the JSON.
            is_ours: whether nobody else can have written it. Only then is anything unpickled.

        Raises:
            ValueError: it is no such text, or has something pickled inside and may be another's.
        """
        values = from_json(text, is_ours=is_ours)
        request = values["request"]
        request["user_code"] = UserCode(**request["user_code"])
        request["examples_format"] = ExamplesFormat(**request["examples_format"])
        contract = request["contract"]
        request["contract"] = contract and ServingContract.from_json(contract)
        if request["eval_config"] is not None:
            request["eval_config"] = parse_eval_config(request["eval_config"])
        values["request"] = TrainingRequest(**request)
        values["distribution"] = Distribution.from_json(values["distribution"])
        return cls(**values)


def _node_dir(model_run_dir: str) -> str:
    """Returns the directory that all executions of a node share, told from one of them.

    What is kept of a failed one counts as that one.

    1. TFX's own orchestrators: `<root>/<node>/model_run/<execution>` → `<root>/<node>`.
    2. Kubeflow and Vertex: `<root>/<run>/<task>/model_run` → `<root>/<node>`, where a task is named
       by its node and perhaps a number (`Trainer_-3145728`).
    3. Anything else: the parent directory.
    """
    parent, name = os.path.split(model_run_dir.rstrip("/").removesuffix(_FAILED_SUFFIX))
    if os.path.basename(parent) == _MODEL_RUN:
        return os.path.dirname(parent)
    if name != _MODEL_RUN:
        return parent
    run, task = os.path.split(parent)
    return os.path.join(os.path.dirname(run), re.sub(r"_-?\d+$", "", task))
