"""Private names of other libraries: the only module that may use them.

Each is listed here with what it is needed for. What a new release of a library has renamed is told
as that, with library, version and name, instead of as an AttributeError from somewhere inside; and
`tests/_core/test_internals.py` looks up every one of them on both stacks.

::

    context = internals.TF_EAGER_CONTEXT.get()          # a module's attribute
    dataset = internals.TF_ITERATOR_DATASET.of(iterator)  # an object's attribute
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class PrivateName:
    """A module, class or function that a library does not promise to keep.

    Attributes:
        library: the distribution that has it.
        path: `"package.module"` or `"package.module:name.name"`.
        purpose: what breaks without it.
    """

    library: str
    path: str
    purpose: str

    def get(self) -> Any:
        """Returns what the name stands for.

        Raises:
            ConfigurationError: the installed release has no such name.
        """
        module, _, names = self.path.partition(":")
        try:
            return functools.reduce(
                getattr, filter(None, names.split(".")), importlib.import_module(module)
            )
        except (ImportError, AttributeError) as error:
            raise _missing(self.library, self.path, self.purpose) from error


@dataclasses.dataclass(frozen=True)
class PrivateAttribute:
    """An attribute of a library's objects that the library does not promise to keep.

    Attributes:
        library: the distribution that has the class.
        owner: the class, for messages, such as `"keras.Model"`.
        name: of the attribute.
        purpose: what breaks without it.
    """

    library: str
    owner: str
    name: str
    purpose: str

    def of(self, thing: Any) -> Any:
        """Returns the attribute of an object.

        Raises:
            ConfigurationError: the installed release has no such attribute.
        """
        try:
            return getattr(thing, self.name)
        except AttributeError as error:
            raise _missing(self.library, f"{self.owner}.{self.name}", self.purpose) from error

    def set(self, thing: Any, value: Any) -> None:
        """Sets the attribute of an object that has it.

        Raises:
            ConfigurationError: the installed release has no such attribute.
        """
        self.of(thing)
        setattr(thing, self.name, value)


@contextlib.contextmanager
def replaced_method(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Has a function be called in place of a method of a class, or a function of a module.

    What it replaces is the first argument, before `self`.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, self, *args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _missing(library: str, name: str, purpose: str) -> ConfigurationError:
    version = platform.python_version() if library == "python" else "(not installed)"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(library)
    return ConfigurationError(
        f"{library} {version} has no {name}, which GenericTrainer needs for {purpose}. Install a "
        "release that GenericTrainer supports (`generic-trainer doctor` lists them), or report it."
    )


# ---- Python --------------------------------------------------------------------------------------

PYTHON_ATEXIT_CLEAR = PrivateName(
    "python", "atexit:_clear", "children that do not run their parent's exit functions"
)
PYTHON_ATEXIT_RUN = PrivateName(
    "python", "atexit:_run_exitfuncs", "children that run the exit functions of user code"
)
PYTHON_INTERPRETER_FLAGS = PrivateName(
    "python", "subprocess:_args_from_interpreter_flags", "children with the same -W and -X options"
)
PYTHON_UNPICKLER = PrivateName(
    "python", "pickle:_Unpickler", "looking into pickles without importing what they name"
)

# ---- TensorFlow ----------------------------------------------------------------------------------

TF_ADD_CONTROL_INPUTS = PrivateAttribute(
    "tensorflow", "tf.Operation", "_add_control_inputs", "summaries that come before a step"
)
TF_AUTOGRAPH_CONFIG = PrivateName(
    "tensorflow", "tensorflow.python.autograph.core.config", "a first step that converts no Keras 2"
)
TF_AUTOGRAPH_CONVERSION = PrivateName(
    "tensorflow",
    "tensorflow.python.autograph.impl.conversion",
    "a first step that converts no Keras 2",
)
TF_AUTOGRAPH_FOUND = PrivateAttribute(
    "tensorflow",
    "autograph.impl.conversion",
    "_ALLOWLIST_CACHE",
    "a first step that converts no Keras 2",
)
TF_AUTOGRAPH_RULES = PrivateAttribute(
    "tensorflow",
    "autograph.core.config",
    "CONVERSION_RULES",
    "a first step that converts no Keras 2",
)
TF_CHECKPOINT_TENSORS = PrivateName(
    "tensorflow",
    "tensorflow.python.checkpoint.save_util:serialize_graph_view",
    "checkpoints beside training",
)
TF_CHECKPOINT_VIEW = PrivateName(
    "tensorflow",
    "tensorflow.python.checkpoint.graph_view:ObjectGraphView",
    "checkpoints beside training",
)
TF_CONTROL_FLOW_CONTEXT = PrivateAttribute(
    "tensorflow", "tf.Operation", "_get_control_flow_context", "summaries that come before a step"
)
TF_CREATE_FINGERPRINT = PrivateName(
    "tensorflow",
    "tensorflow.python.saved_model.pywrap_saved_model:fingerprinting.CreateFingerprintDef",
    "comparing a SavedModel with its fingerprint",
)
TF_DATASET_INPUT = PrivateAttribute(
    "tensorflow",
    "tf.data.Dataset",
    "_input_dataset",
    "libraries such as TensorFlow Decision Forests",
)
TF_OWNED_ITERATOR = PrivateName(
    "tensorflow",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator",
    "seeing how loops of one's own get on",
)
TF_EAGER_CONTEXT = PrivateName(
    "tensorflow",
    "tensorflow.python.eager.context:context",
    "workers that agree on the step after which all of them stop, and random state to resume from",
)
TF_FIND_OP = PrivateName(
    "tensorflow",
    "tensorflow.python.framework.op_def_registry:get",
    "finding the ops of a SavedModel that TensorFlow does not have",
)
TF_KERNELS_OF_OP = PrivateName(
    "tensorflow",
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op",
    "saying which ops of a model run on an accelerator alone",
)
TF_GLOBAL_GENERATOR = PrivateName(
    "tensorflow",
    "tensorflow.python.ops.stateful_random_ops:global_generator",
    "resuming with the random state of the run before, without making a generator",
)
TF_ITERATOR_DATASET = PrivateAttribute(
    "tensorflow", "tf.data.Iterator", "_dataset", "resuming in the middle of shuffled data"
)
TF_ITERATOR_STATE = PrivateAttribute(
    "tensorflow", "tf.data.Iterator", "_serialize_to_tensors", "checkpoints beside training"
)
TF_IO_OPS = PrivateName(
    "tensorflow",
    "tensorflow.python.ops.io_ops",
    "loading a model with variables that have been read already",
)
TF_LITE_MODEL = PrivateName(
    "tensorflow",
    "tensorflow.lite.python.schema_py_generated:ModelT",
    "reading a TFLite model before its interpreter, which a damaged one crashes",
)
TF_OP_SEEDS = PrivateAttribute(
    "tensorflow", "tf.random.set_seed", "_rng", "resuming with the random state of the run before"
)
TF_PARSE_SAVED_MODEL = PrivateName(
    "tensorflow",
    "tensorflow.python.saved_model.loader_impl:parse_saved_model",
    "reading a SavedModel without loading it",
)
TF_SESSION_MAKE_CALLABLE = PrivateAttribute(
    "tensorflow",
    "tf.compat.v1.Session",
    "_make_callable_from_options",
    "steps of a TensorFlowTrial that cost half of what Session.run costs",
)
TF_SESSION_STOP_REQUESTED = PrivateAttribute(
    "tensorflow",
    "tf.compat.v1.train.SessionRunContext",
    "_stop_requested",
    "a session that stays open when a hook wants to stop",
)
TF_WRITE_FINGERPRINT = PrivateName(
    "tensorflow",
    "tensorflow.python.saved_model.fingerprinting_utils:write_fingerprint",
    "the fingerprint of an export whose devices were cleared",
)

# ---- Keras 2 and 3 -------------------------------------------------------------------------------

KERAS_2_AGGREGATE = PrivateAttribute(
    "tf_keras",
    "keras.optimizers.legacy.Optimizer",
    "_aggregate_gradients",
    "estimators on several workers",
)
KERAS_2_API = PrivateName("tf_keras", "tf_keras.api._v2.keras", "the tf.keras of estimators")
KERAS_2_API_V1 = PrivateName(
    "tf_keras", "tf_keras.api._v1.keras", "the tf.compat.v1.keras of estimators"
)
KERAS_2_LAYERS = PrivateAttribute(
    "tf_keras", "Model", "_flatten_layers", "resuming with the random state of layers"
)
KERAS_2_LAYER_RANDOMNESS = PrivateAttribute(
    "tf_keras", "BaseRandomLayer", "_random_generator", "checkpoints that keep Dropout's state"
)
KERAS_2_LEGACY_BUILD = PrivateAttribute(
    "tf_keras",
    "keras.optimizers.legacy.Optimizer",
    "_create_all_weights",
    "Keras trials whose steps are of several batches",
)
KERAS_2_RANDOM_GENERATOR = PrivateAttribute(
    "tf_keras", "RandomGenerator", "_generator", "checkpoints that keep Dropout's state"
)
KERAS_2_SEEDS = PrivateName(
    "tf_keras",
    "tf_keras.src.backend:_SEED_GENERATOR",
    "resuming with the random state of the run before",
)
KERAS_2_TAKES_TENSOR_LOGS = PrivateAttribute(
    "tf_keras", "Callback", "_supports_tf_logs", "callbacks that each get the logs they can read"
)
KERAS_2_TRAINING_STATE = PrivateAttribute(
    "tf_keras", "tf_keras.Model", "_training_state", "a fit that starts at an epoch of its own"
)
KERAS_2_TRAIN_COUNTER = PrivateAttribute(
    "tf_keras", "tf_keras.Model", "_train_counter", "the number of steps in a checkpoint"
)
KERAS_3_BUILD = PrivateAttribute(
    "keras",
    "keras.Model",
    "_maybe_symbolic_build",
    "models on several workers that are built without a batch, which would be shuffled away",
)
KERAS_3_GLOBAL_ATTRIBUTE = PrivateName(
    "keras",
    "keras.src.backend.common.global_state:get_global_attribute",
    "resuming with the random state of the run before",
)
KERAS_3_INITIAL_EPOCH = PrivateAttribute(
    "keras", "keras.Model", "_initial_epoch", "a fit that starts at an epoch of its own"
)
KERAS_3_LAYERS = PrivateAttribute(
    "keras", "keras.Model", "_flatten_layers", "resuming with the random state of layers"
)
KERAS_3_RESULTS = PrivateAttribute(
    "keras", "keras.Model", "_get_metrics_result_or_logs", "metrics over the data of all workers"
)
KERAS_3_SEEDS = PrivateName(
    "keras",
    "keras.src.random.seed_generator:global_seed_generator",
    "resuming with the random state of the run before",
)
KERAS_3_SET_MONITOR_OP = PrivateAttribute(
    "keras",
    "keras.callbacks.MonitorCallback",
    "_set_monitor_op",
    "callbacks that keep the best value of the run that they resume",
)
KERAS_3_TRAINED = PrivateAttribute(
    "keras",
    "keras.optimizers.Optimizer",
    "_trainable_variables",
    "Keras trials whose steps are of several batches",
)
KERAS_TENSORBOARD_BATCH = PrivateAttribute(
    "keras", "TensorBoard", "_global_train_batch", "curves that go on after a restart"
)

# ---- Beam ----------------------------------------------------------------------------------------

BEAM_FANOUT = PrivateName(
    "apache-beam",
    "apache_beam.transforms.core:_CombinePerKeyWithHotKeyFanout",
    "evaluating a model on a few examples without a runner",
)
BEAM_FANOUT_COMBINE_FN = PrivateAttribute(
    "apache-beam",
    "CombinePerKey.with_hot_key_fanout",
    "_combine_fn",
    "evaluating a model on a few examples without a runner",
)
BEAM_NAMED_TRANSFORM = PrivateName(
    "apache-beam",
    "apache_beam.transforms.ptransform:_NamedPTransform",
    "evaluating a model on a few examples without a runner",
)

# ---- TFX -----------------------------------------------------------------------------------------

TFX_BSL_PARSER_CONFIG = PrivateAttribute(
    "tfx-bsl",
    "TFExampleRecord",
    "_GetTfExampleParserConfig",
    "parsing examples as TFX's reader does",
)

TFX_BSL_SEQUENCE_PARSER_CONFIG = PrivateName(
    "tfx-bsl",
    "tfx_bsl.tfxio.tensor_representation_util:CreateTfSequenceExampleParserConfig",
    "parsing sequence examples as TFX's reader does",
)

# ---- tensorflow-estimator ------------------------------------------------------------------------

ESTIMATOR_CALL_INPUT_FN = PrivateAttribute(
    "tensorflow-estimator", "Estimator", "_call_input_fn", "estimators on several workers"
)
ESTIMATOR_CALL_MODEL_FN = PrivateAttribute(
    "tensorflow-estimator", "Estimator", "_call_model_fn", "estimators on several workers"
)
ESTIMATOR_CONFIG = PrivateAttribute(
    "tensorflow-estimator", "Estimator", "_config", "estimators on several workers"
)
ESTIMATOR_EVALUATE_RUN = PrivateAttribute(
    "tensorflow-estimator", "Estimator", "_evaluate_run", "estimators on several workers"
)
ESTIMATOR_EVAL_STRATEGY = PrivateAttribute(
    "tensorflow-estimator", "RunConfig", "_eval_distribute", "distribution strategies"
)
ESTIMATOR_EXPERIMENTAL = PrivateAttribute(
    "tensorflow-estimator", "RunConfig", "_experimental_distribute", "distribution strategies"
)
ESTIMATOR_FEATURES_AND_LABELS = PrivateAttribute(
    "tensorflow-estimator",
    "Estimator",
    "_get_features_and_labels_from_input_fn",
    "a model that is served with the features of its validation data",
)
ESTIMATOR_INIT_CLUSTER = PrivateAttribute(
    "tensorflow-estimator",
    "RunConfig",
    "_init_distributed_setting_from_environment_var",
    "estimators in a cluster",
)
ESTIMATOR_INIT_SESSION_CONFIG = PrivateAttribute(
    "tensorflow-estimator",
    "RunConfig",
    "_maybe_overwrite_session_config_for_distributed_training",
    "estimators in a cluster",
)
ESTIMATOR_IS_CHIEF = PrivateAttribute(
    "tensorflow-estimator", "RunConfig", "_is_chief", "estimators on several workers"
)
ESTIMATOR_MODEL_FN = PrivateAttribute(
    "tensorflow-estimator", "Estimator", "_model_fn", "the user's estimator in a trial of its own"
)
ESTIMATOR_TASK_TYPE = PrivateAttribute(
    "tensorflow-estimator", "RunConfig", "_task_type", "estimators on several workers"
)
ESTIMATOR_TRAIN_STRATEGY = PrivateAttribute(
    "tensorflow-estimator", "RunConfig", "_train_distribute", "distribution strategies"
)
ESTIMATOR_WARM_START = PrivateAttribute(
    "tensorflow-estimator",
    "Estimator",
    "_warm_start_settings",
    "the user's estimator in a trial of its own",
)

# ---- Ray -----------------------------------------------------------------------------------------

RAY_CONFIG = PrivateName("ray", "ray._raylet:Config", "a Ray of our own that asks for a token")
RAY_CONTROLLER_CALLBACK = PrivateName(
    "ray",
    "ray.train.v2._internal.execution.callback:ControllerCallback",
    "an end to the wait for a number of workers that may change",
)
RAY_DATA_PARALLEL_TRAINER = PrivateName(
    "ray",
    "ray.train.v2.api.data_parallel_trainer:DataParallelTrainer",
    "workers of Ray Train that do not import Ray's own TensorFlow backend",
)
RAY_DEFAULT_CALLBACKS = PrivateAttribute(
    "ray",
    "DataParallelTrainer",
    "_create_default_callbacks",
    "training without Ray's placement group cleaner, which needs a dashboard",
)
RAY_ELASTIC_POLICY = PrivateName(
    "ray",
    "ray.train.v2._internal.execution.scaling_policy:ElasticScalingPolicy",
    "a number of workers that may change",
)
RAY_HEALTH_CHECK_FAILED = PrivateName(
    "ray",
    "ray.train.v2._internal.exceptions:WorkerHealthCheckFailedError",
    "telling lost workers of Ray from failed ones",
)
RAY_HEALTH_CHECK_TIMEOUT = PrivateName(
    "ray",
    "ray.train.v2._internal.exceptions:WorkerHealthCheckTimeoutError",
    "telling lost workers of Ray from failed ones",
)
RAY_NO_RESOURCES = PrivateName(
    "ray",
    "ray.train.v2._internal.exceptions:InsufficientClusterResourcesError",
    "saying which resources a Ray cluster lacks",
)
RAY_PLACEMENT_GROUP = PrivateAttribute(
    "ray", "worker_group", "placement_group", "giving back what killed workers had"
)
RAY_PLACEMENT_GROUP_CLEANER = PrivateName(
    "ray",
    "ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback",
    "training without Ray's placement group cleaner, which needs a dashboard",
)
RAY_STARTUP_FAILED = PrivateName(
    "ray",
    "ray.train.v2._internal.exceptions:WorkerGroupStartupFailedError",
    "telling workers of Ray that were lost at their start from failed ones",
)
RAY_STARTUP_TIMEOUT = PrivateName(
    "ray",
    "ray.train.v2._internal.exceptions:WorkerGroupStartupTimeoutError",
    "saying which resources a Ray cluster lacks",
)
RAY_TOKEN_LOADER = PrivateName(
    "ray", "ray._raylet:AuthenticationTokenLoader", "a Ray of our own that asks for a token"
)
RAY_TRAIN_FUNCTIONS = PrivateName(
    "ray",
    "ray.train.v2._internal.execution.train_fn_utils",
    "a run_fn that calls ray.train.report and the like",
)
RAY_WORKER_GROUP = PrivateName(
    "ray",
    "ray.train.v2._internal.execution.worker_group.worker_group",
    "giving back what killed workers had",
)
