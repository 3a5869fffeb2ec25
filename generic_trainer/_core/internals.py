"""Private names of other libraries: the only module that may name them.

The constants are the private names that the package reads, calls or sets, with the feature that
breaks without them; `OVERRIDDEN` has those that its classes override. If a release has renamed one,
users get an error with library, version and name instead of an AttributeError from deep inside;
`tests/_core/test_internals.py` looks up every name on both stacks, and reports those without a use.

::

    context = internals.TF_EAGER_CONTEXT.get()()          # a name of a module
    dataset = internals.TF_ITERATOR_DATASET.of(iterator)  # an attribute of an object
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from generic_trainer.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class PrivateName:
    """A module, name or attribute that a library does not promise to keep.

    Attributes:
        path: `package.module`, `package.module:name` or `package.module:Class.name`.
        purpose: the feature that breaks without it.
    """

    path: str
    purpose: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(":")[2].rpartition(".")[2]

    def get(self) -> Any:
        """Returns the module, or the value of the name.

        Raises:
            ConfigurationError: the installed release has no such name.
        """
        try:
            return pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            raise self._missing() from error

    def of(self, thing: Any) -> Any:
        """Returns the attribute of an object.

        Raises:
            ConfigurationError: the installed release has no such attribute.
        """
        try:
            return getattr(thing, self.name)
        except AttributeError as error:
            raise self._missing() from error

    def set(self, thing: Any, value: Any) -> None:
        """Sets the attribute of an object that has it.

        Raises:
            ConfigurationError: the installed release has no such attribute.
        """
        self.of(thing)
        setattr(thing, self.name, value)

    def _missing(self) -> ConfigurationError:
        path = self.path.replace(":", ".")
        library = path.partition(".")[0].replace("_", "-")
        version = "(not installed)"
        if path.partition(".")[0] in sys.stdlib_module_names:
            library = "python"
            version = platform.python_version()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(library)
        return ConfigurationError(
            f"{library} {version} has no {path}, which GenericTrainer needs for "
            f"{self.purpose}. Install a release that GenericTrainer supports (`generic-trainer "
            "doctor` lists them), or report it."
        )


# What breaks without a name.
_FIRST_STEP = "a first step that does not convert Keras 2"
_SUMMARIES = "summaries that precede a step"
_RANDOM_STATE = "resuming with the random state of the previous run"
_SHUFFLED_DATA = "resuming in the middle of shuffled data"
_ESTIMATORS = "estimators on several workers"
_IN_A_CLUSTER = "estimators in a cluster"
_IN_A_TRIAL = "a user's estimator in a trial"
_ESTIMATOR = "tensorflow_estimator.python.estimator.estimator:Estimator"
_RUN_CONFIG = "tensorflow_estimator.python.estimator.run_config:RunConfig"

# Of Python.
PYTHON_ATEXIT_CLEAR = PrivateName(
    "atexit:_clear", "children that do not run the exit functions of their parent"
)
PYTHON_ATEXIT_RUN = PrivateName(
    "atexit:_run_exitfuncs", "children that run the exit functions of user code"
)
PYTHON_INTERPRETER_FLAGS = PrivateName(
    "subprocess:_args_from_interpreter_flags", "children with the same -W and -X options"
)

# Of Ray.
RAY_DRAINING_NODES = PrivateName(
    "ray._private.state:state.get_draining_nodes",
    "workers that save before their node leaves a Ray cluster",
)

# Of TensorFlow.
TF_ADD_CONTROL_INPUTS = PrivateName("tensorflow:Operation._add_control_inputs", _SUMMARIES)
TF_AUTOGRAPH_CONFIG = PrivateName("tensorflow.python.autograph.core.config", _FIRST_STEP)
TF_AUTOGRAPH_CONVERSION = PrivateName("tensorflow.python.autograph.impl.conversion", _FIRST_STEP)
TF_AUTOGRAPH_FOUND = PrivateName(
    "tensorflow.python.autograph.impl.conversion:_ALLOWLIST_CACHE", _FIRST_STEP
)
TF_AUTOGRAPH_RULES = PrivateName(
    "tensorflow.python.autograph.core.config:CONVERSION_RULES", _FIRST_STEP
)
TF_CONTROL_FLOW_CONTEXT = PrivateName("tensorflow:Operation._get_control_flow_context", _SUMMARIES)
TF_CREATE_FINGERPRINT = PrivateName(
    "tensorflow.python.saved_model.pywrap_saved_model:fingerprinting.CreateFingerprintDef",
    "the fingerprint of a SavedModel: to compare, and of an export without devices",
)
TF_DATASET_INPUT = PrivateName(
    "tensorflow:data.Dataset._input_dataset", "libraries such as TensorFlow Decision Forests"
)
TF_EAGER_CONTEXT = PrivateName(
    "tensorflow.python.eager.context:context",
    "workers that stop after the same step, and random state to resume from",
)
TF_FIND_OP = PrivateName(
    "tensorflow.python.framework.op_def_registry:get",
    "finding ops of a SavedModel that TensorFlow does not have",
)
TF_GLOBAL_GENERATOR = PrivateName(
    "tensorflow.python.ops.stateful_random_ops:global_generator", _RANDOM_STATE
)
TF_ITERATOR_DATASET = PrivateName("tensorflow:data.Iterator._dataset", _SHUFFLED_DATA)
TF_ITERATOR_RESOURCE = PrivateName("tensorflow:data.Iterator._iterator_resource", _SHUFFLED_DATA)
TF_KERNELS_OF_OP = PrivateName(
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op",
    "finding ops of a model that only run on an accelerator",
)
TF_LOOKUP_OPS = PrivateName("tensorflow.python.ops.lookup_ops", "tf.contrib.lookup")
TF_ONE_DEVICE = PrivateName(
    "tensorflow.python.distribute.one_device_strategy:OneDeviceExtended",
    "Keras 3 on several workers",
)
TF_OP_SEEDS = PrivateName("tensorflow.python.eager.context:Context._rng", _RANDOM_STATE)
TF_PARSE_SAVED_MODEL = PrivateName(
    "tensorflow.python.saved_model.loader_impl:parse_saved_model",
    "reading a SavedModel without loading it",
)
TF_SESSION_STOP_REQUESTED = PrivateName(
    "tensorflow:compat.v1.train.SessionRunContext._stop_requested",
    "a session that stays open when a hook wants to stop",
)

# Of Keras.
KERAS_2_AGGREGATE = PrivateName(
    "tf_keras:optimizers.legacy.Optimizer._aggregate_gradients", _ESTIMATORS
)
KERAS_2_API = PrivateName("tf_keras.api._v2.keras", "the tf.keras of estimators")
KERAS_2_API_V1 = PrivateName("tf_keras.api._v1.keras", "the tf.compat.v1.keras of estimators")
KERAS_2_LAYERS = PrivateName("tf_keras:Model._flatten_layers", _FIRST_STEP)
KERAS_2_SEEDS = PrivateName("tf_keras.src.backend:_SEED_GENERATOR", _RANDOM_STATE)
KERAS_3_BUILD = PrivateName(
    "keras:Model._maybe_symbolic_build",
    "building models on several workers without consuming a batch",
)
KERAS_3_GLOBAL_ATTRIBUTE = PrivateName(
    "keras.src.backend.common.global_state:get_global_attribute", _RANDOM_STATE
)
KERAS_3_RESULTS = PrivateName(
    "keras:Model._get_metrics_result_or_logs", "metrics over the data of all workers"
)
KERAS_3_SET_MONITOR_OP = PrivateName(
    "keras:callbacks.EarlyStopping._set_monitor_op",
    "callbacks that keep the best value of the run they resume",
)
KERAS_TENSORBOARD_BATCH = PrivateName(
    "keras:callbacks.TensorBoard._global_train_batch", "curves that continue after a restart"
)

# Of tensorflow-estimator.
ESTIMATOR_CALL_INPUT_FN = PrivateName(f"{_ESTIMATOR}._call_input_fn", _ESTIMATORS)
ESTIMATOR_CALL_MODEL_FN = PrivateName(f"{_ESTIMATOR}._call_model_fn", _ESTIMATORS)
ESTIMATOR_CONFIG = PrivateName(f"{_ESTIMATOR}._config", _ESTIMATORS)
ESTIMATOR_EVALUATE_RUN = PrivateName(f"{_ESTIMATOR}._evaluate_run", _ESTIMATORS)
ESTIMATOR_EXPERIMENTAL = PrivateName(
    f"{_RUN_CONFIG}._experimental_distribute", "refusing distribution strategies of tf.contrib"
)
ESTIMATOR_FEATURES_AND_LABELS = PrivateName(
    f"{_ESTIMATOR}._get_features_and_labels_from_input_fn",
    "a model that is served with the features of its validation data",
)
ESTIMATOR_INIT_CLUSTER = PrivateName(
    f"{_RUN_CONFIG}._init_distributed_setting_from_environment_var", _IN_A_CLUSTER
)
ESTIMATOR_INIT_SESSION_CONFIG = PrivateName(
    f"{_RUN_CONFIG}._maybe_overwrite_session_config_for_distributed_training", _IN_A_CLUSTER
)
ESTIMATOR_IS_CHIEF = PrivateName(f"{_RUN_CONFIG}._is_chief", _ESTIMATORS)
ESTIMATOR_MODEL_FN = PrivateName(f"{_ESTIMATOR}._model_fn", _IN_A_TRIAL)
ESTIMATOR_TASK_TYPE = PrivateName(f"{_RUN_CONFIG}._task_type", _ESTIMATORS)
ESTIMATOR_WARM_START = PrivateName(f"{_ESTIMATOR}._warm_start_settings", _IN_A_TRIAL)

# Class of a library → methods and attributes that classes of ours override: the library uses them.
OVERRIDDEN = {
    "tensorflow.python.distribute.one_device_strategy:OneDeviceExtended": """
        _batch_reduce_to _call_for_each_replica _create_variable
        _distribute_datasets_from_function _experimental_distribute_dataset
        _experimental_distribute_values_from_function _gather_to_implementation
        _num_replicas_in_sync _reduce_to _validate_colocate_with_variable""",
    "tf_keras:callbacks.Callback": """
        _implements_predict_batch_hooks _implements_test_batch_hooks _implements_train_batch_hooks
        _supports_tf_logs""",
    "tfx.dsl.components.base.base_component:BaseComponent": "_resolve_pip_dependencies",
}


def names() -> dict[str, PrivateName]:
    """Returns all private names, by the names of their constants."""
    return {key: value for key, value in globals().items() if isinstance(value, PrivateName)}


@contextlib.contextmanager
def replaced_method(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of a class, or a function of a module, within the context.

    Args:
        owner: the class or module.
        name: the method's name.
        around: is called with the original, and the arguments of the call.
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
