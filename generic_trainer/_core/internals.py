"""Private names of other libraries: the only module that may name them.

`_TABLE` lists every private name that the package reads, calls or sets, one a line, with the feature
that breaks without it; `OVERRIDDEN` those that its classes override. If a release has renamed one, users get an error with library,
version and name instead of an AttributeError from deep inside; `tests/_core/test_internals.py`
looks up every row on both stacks, and reports rows without a use.

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

# Key, path and purpose. A path is `package.module`, `package.module:name` or, for an attribute of
# objects, `package.module:Class.name`.
_TABLE = """
PYTHON_ATEXIT_CLEAR          atexit:_clear                            children that do not run the exit functions of their parent
PYTHON_ATEXIT_RUN            atexit:_run_exitfuncs                    children that run the exit functions of user code
PYTHON_INTERPRETER_FLAGS     subprocess:_args_from_interpreter_flags  children with the same -W and -X options

RAY_DRAINING_NODES           ray._private.state:state.get_draining_nodes  workers that save before their node leaves a Ray cluster

TF_ADD_CONTROL_INPUTS        tensorflow:Operation._add_control_inputs                                summaries that precede a step
TF_AUTOGRAPH_CONFIG          tensorflow.python.autograph.core.config                                 a first step that does not convert Keras 2
TF_AUTOGRAPH_CONVERSION      tensorflow.python.autograph.impl.conversion                             a first step that does not convert Keras 2
TF_AUTOGRAPH_FOUND           tensorflow.python.autograph.impl.conversion:_ALLOWLIST_CACHE            a first step that does not convert Keras 2
TF_AUTOGRAPH_RULES           tensorflow.python.autograph.core.config:CONVERSION_RULES                a first step that does not convert Keras 2
TF_CONTROL_FLOW_CONTEXT      tensorflow:Operation._get_control_flow_context                          summaries that precede a step
TF_CREATE_FINGERPRINT        tensorflow.python.saved_model.pywrap_saved_model:fingerprinting.CreateFingerprintDef  the fingerprint of a SavedModel: to compare, and of an export without devices
TF_DATASET_INPUT             tensorflow:data.Dataset._input_dataset                                  libraries such as TensorFlow Decision Forests
TF_EAGER_CONTEXT             tensorflow.python.eager.context:context                                 workers that stop after the same step, and random state to resume from
TF_FIND_OP                   tensorflow.python.framework.op_def_registry:get                         finding ops of a SavedModel that TensorFlow does not have
TF_GLOBAL_GENERATOR          tensorflow.python.ops.stateful_random_ops:global_generator              resuming with the random state of the previous run
TF_ITERATOR_DATASET          tensorflow:data.Iterator._dataset                                       resuming in the middle of shuffled data
TF_ITERATOR_RESOURCE         tensorflow:data.Iterator._iterator_resource                                    resuming in the middle of shuffled data
TF_KERNELS_OF_OP             tensorflow.python.framework.kernels:get_registered_kernels_for_op       finding ops of a model that only run on an accelerator
TF_LOOKUP_OPS                tensorflow.python.ops.lookup_ops                                       tf.contrib.lookup
TF_ONE_DEVICE                tensorflow.python.distribute.one_device_strategy:OneDeviceExtended      Keras 3 on several workers
TF_OP_SEEDS                  tensorflow.python.eager.context:Context._rng                            resuming with the random state of the previous run
TF_PARSE_SAVED_MODEL         tensorflow.python.saved_model.loader_impl:parse_saved_model             reading a SavedModel without loading it
TF_SESSION_STOP_REQUESTED    tensorflow:compat.v1.train.SessionRunContext._stop_requested            a session that stays open when a hook wants to stop

KERAS_2_AGGREGATE            tf_keras:optimizers.legacy.Optimizer._aggregate_gradients   estimators on several workers
KERAS_2_API                  tf_keras.api._v2.keras                                      the tf.keras of estimators
KERAS_2_API_V1               tf_keras.api._v1.keras                                      the tf.compat.v1.keras of estimators
KERAS_2_LAYERS               tf_keras:Model._flatten_layers                              a first step that does not convert Keras 2
KERAS_2_SEEDS                tf_keras.src.backend:_SEED_GENERATOR                        resuming with the random state of the previous run

KERAS_3_BUILD                keras:Model._maybe_symbolic_build                           building models on several workers without consuming a batch
KERAS_3_GLOBAL_ATTRIBUTE     keras.src.backend.common.global_state:get_global_attribute  resuming with the random state of the previous run
KERAS_3_RESULTS              keras:Model._get_metrics_result_or_logs                     metrics over the data of all workers
KERAS_3_SET_MONITOR_OP       keras:callbacks.EarlyStopping._set_monitor_op               callbacks that keep the best value of the run they resume
KERAS_TENSORBOARD_BATCH      keras:callbacks.TensorBoard._global_train_batch             curves that continue after a restart

ESTIMATOR_CALL_INPUT_FN      tensorflow_estimator.python.estimator.estimator:Estimator._call_input_fn          estimators on several workers
ESTIMATOR_CALL_MODEL_FN      tensorflow_estimator.python.estimator.estimator:Estimator._call_model_fn          estimators on several workers
ESTIMATOR_CONFIG             tensorflow_estimator.python.estimator.estimator:Estimator._config                 estimators on several workers
ESTIMATOR_EVALUATE_RUN       tensorflow_estimator.python.estimator.estimator:Estimator._evaluate_run           estimators on several workers
ESTIMATOR_EXPERIMENTAL       tensorflow_estimator.python.estimator.run_config:RunConfig._experimental_distribute  refusing distribution strategies of tf.contrib
ESTIMATOR_FEATURES_AND_LABELS  tensorflow_estimator.python.estimator.estimator:Estimator._get_features_and_labels_from_input_fn  a model that is served with the features of its validation data
ESTIMATOR_INIT_CLUSTER       tensorflow_estimator.python.estimator.run_config:RunConfig._init_distributed_setting_from_environment_var  estimators in a cluster
ESTIMATOR_INIT_SESSION_CONFIG  tensorflow_estimator.python.estimator.run_config:RunConfig._maybe_overwrite_session_config_for_distributed_training  estimators in a cluster
ESTIMATOR_IS_CHIEF           tensorflow_estimator.python.estimator.run_config:RunConfig._is_chief              estimators on several workers
ESTIMATOR_MODEL_FN           tensorflow_estimator.python.estimator.estimator:Estimator._model_fn               a user's estimator in a trial
ESTIMATOR_TASK_TYPE          tensorflow_estimator.python.estimator.run_config:RunConfig._task_type             estimators on several workers
ESTIMATOR_WARM_START         tensorflow_estimator.python.estimator.estimator:Estimator._warm_start_settings    a user's estimator in a trial
"""
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
        library, version = path.partition(".")[0].replace("_", "-"), "(not installed)"
        if path.partition(".")[0] in sys.stdlib_module_names:
            library, version = "python", platform.python_version()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(library)
        return ConfigurationError(
            f"{library} {version} has no {path}, which GenericTrainer needs for "
            f"{self.purpose}. Install a release that GenericTrainer supports (`generic-trainer "
            "doctor` lists them), or report it."
        )


@functools.cache
def names() -> dict[str, PrivateName]:
    """Returns the rows of the table, by their keys."""
    table = (line.split(None, 2) for line in _TABLE.splitlines() if line)
    return {key: PrivateName(path, purpose) for key, path, purpose in table}


def __getattr__(key: str) -> PrivateName:
    """Returns the name with a key of the table."""
    if key in names():
        return names()[key]
    raise AttributeError(f"module {__name__!r} has no attribute {key!r}")


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
