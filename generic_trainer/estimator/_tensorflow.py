"""TensorFlow with `tf.estimator`, as estimator code knows it.

1. `tf` is TensorFlow itself but for two things. It has `tf.estimator`. And its Keras is Keras 2,
   with the optimizers that it had until 2.10, whatever `tf.keras` is elsewhere in the process:
   estimators build TF 1 graphs, where newer Keras cannot make its variables. `tf` is a
   separate module object, so the `tensorflow` of other code does not change. `tf1` is its
   `tf.compat.v1`, with `tf.contrib`; if it is used, `tensor.shape[1]` is a `Dimension` while an
   estimator calls its input and model functions, as it was in TensorFlow 1. Its `app.run` runs the
   main program in a graph.
2. The names of `tf.estimator` come from `tensorflow_estimator` 2.15, the last release, beside a
   TensorFlow that has moved on. Its modules are read as they are installed but for three import
   lines: names that TensorFlow no longer has are imported from this module. The top-level
   `__init__` is taken for empty, because it imports the TPU estimator, which is past help. Line
   numbers in tracebacks are those of the installed files.
3. So are the modules of `tf_slim` 1.1, the last release, which `tf.contrib` needs.

What stays behind in the process is one entry in `sys.meta_path`, which answers for these two
packages only.
"""

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from generic_trainer._core import internals
from generic_trainer._core.texts import IN_A_GRAPH
from generic_trainer._entry_points import trainer_apis
from generic_trainer.errors import ConfigurationError

_T = TypeVar("_T")

# ---- tf ------------------------------------------------------------------------------------------


def _model_to_estimator(
    api: internals.PrivateName, keras_model: Any = None, *args: Any, **options: Any
) -> Any:
    """Returns an Estimator that trains a compiled model of Keras 2.

    Args:
        api: the API of Keras that has the original.
        keras_model: functional or sequential.
        *args: as of the original, `keras_model_path` first.
        **options: as of the original.

    Raises:
        ConfigurationError: the model is not one of Keras 2.
    """
    if keras_model is not None and not isinstance(keras_model, tf.keras.Model):
        raise ConfigurationError(
            f"model_to_estimator takes a Keras 2 model, but got {type(keras_model)}. Build it "
            "with the tf.keras of `from generic_trainer.estimator import tf`."
        )
    _find_package()
    return api.get().estimator.model_to_estimator(keras_model, *args, **options)


# `tf.keras.estimator.model_to_estimator`, and that of TensorFlow 1, whose checkpoints it writes.
model_to_estimator = functools.partial(_model_to_estimator, internals.KERAS_2_API)
model_to_estimator_v1 = functools.partial(_model_to_estimator, internals.KERAS_2_API_V1)


_KERAS = internals.KERAS_2_API.path
_KERAS_1 = internals.KERAS_2_API_V1.path
_LEGACY_OPTIMIZERS = "Adadelta Adagrad Adam Adamax Ftrl Nadam Optimizer RMSprop SGD"

# Dotted name in TensorFlow → where its meaning here is found. The Keras ones are what TensorFlow
# itself takes when TF_USE_LEGACY_KERAS=1.
_ELSEWHERE = {
    "estimator": "generic_trainer.estimator",
    "initializers": f"{_KERAS}:initializers",
    "keras": _KERAS,
    "losses": f"{_KERAS}:losses",
    "metrics": f"{_KERAS}:metrics",
    "optimizers": f"{_KERAS}:optimizers",
    **{
        f"{module}.{name}": f"{_KERAS}:optimizers.legacy.{name}"
        for module in ("optimizers", "keras.optimizers")
        for name in _LEGACY_OPTIMIZERS.split()
    },
    "keras.estimator.model_to_estimator": f"{__name__}:model_to_estimator",
    "compat.v1.estimator": "generic_trainer.estimator.v1",
    "compat.v1.keras": _KERAS_1,
    "compat.v1.keras.estimator.model_to_estimator": f"{__name__}:model_to_estimator_v1",
    "compat.v1.layers": f"{_KERAS_1}:__internal__.legacy.layers",
    "compat.v1.nn.rnn_cell": f"{_KERAS_1}:__internal__.legacy.rnn_cell",
    # The original keeps the files in a variable, which queues of today's TensorFlow cannot read.
    "compat.v1.train.match_filenames_once": "tensorflow:io.matching_files",
    "compat.v2.estimator": "generic_trainer.estimator",
    "compat.v2.keras": _KERAS,
}


class _TensorFlow(ModuleType):
    """TensorFlow, or a module inside it, with some of its names found elsewhere."""

    def __init__(self, path: str) -> None:
        super().__init__(f"tensorflow.{path}" if path else "tensorflow", __doc__)
        self._path = path
        self.is_used = False

    def __getattr__(self, name: str) -> Any:
        self.is_used = True
        path = f"{self._path}.{name}" if self._path else name
        if any(other.startswith(f"{path}.") for other in _ELSEWHERE):
            # Kept, so that `tf.compat is tf.compat`.
            return self.__dict__.setdefault(name, _TensorFlow(path))
        return _find(path)

    def __dir__(self) -> list[str]:
        added = (other.rpartition(".") for other in _ELSEWHERE)
        return sorted(
            {*dir(_find(self._path)), *(name for path, _, name in added if path == self._path)}
        )


def _find(path: str) -> Any:
    """Returns the meaning of a dotted name in TensorFlow; TensorFlow for the empty name."""
    if path in _ELSEWHERE:
        return internals.PrivateName(_ELSEWHERE[path], f"tf.{path}").get()
    if path == "compat.v1.contrib":  # which another trainer API brings along
        contrib = next(api.contrib for api in trainer_apis() if hasattr(api, "contrib"))
        return importlib.import_module(contrib)
    if not path:
        return importlib.import_module("tensorflow")
    parent, _, name = path.rpartition(".")
    return getattr(_find(parent), name)


tf: Any = _TensorFlow("")
tf1: Any = _TensorFlow("compat.v1")


@contextlib.contextmanager
def _shapes_of_first_api() -> Iterator[None]:
    """Makes the dimensions of shapes `Dimension`s, if code for TensorFlow 1 runs."""
    with contextlib.ExitStack() as stack:
        # TensorFlow has no function that returns this.
        if tf1.is_used and isinstance(tf.TensorShape([1])[0], int):
            tf.compat.v1.disable_v2_tensorshape()
            stack.callback(tf.compat.v1.enable_v2_tensorshape)
        yield


@contextlib.contextmanager
def _graph_of_first_api() -> Iterator[None]:
    """Turns eager execution off, and shapes into those of TensorFlow 1."""
    tf1.is_used = True
    with contextlib.ExitStack() as stack:
        if tf.executing_eagerly():  # else a main program has begun the graph
            stack.enter_context(tf.Graph().as_default())
        stack.enter_context(_shapes_of_first_api())
        yield


@contextlib.contextmanager
def first_behavior(module: str) -> Iterator[None]:
    """Does as `_graph_of_first_api` if a module uses `tf1`, and nothing else."""
    uses_it = any(value is tf1 for value in vars(sys.modules.get(module, tf1)).values())
    with _graph_of_first_api() if uses_it else contextlib.nullcontext():
        yield


# ---- main programs of TensorFlow 1 ---------------------------------------------------------------

_eager_main = False  # whether the main program asked for eager execution


def _run_app(main: Callable[[Any], Any] | None = None, argv: Sequence[str] | None = None) -> None:
    """Runs a main program in a graph, as `tf.app.run` of TensorFlow 1 did, and exits.

    After `tf1.enable_eager_execution` or `tf1.enable_v2_behavior` it runs eagerly.

    Args:
        main: takes the arguments that are not flags; by default the script's function `main`.
        argv: the script's path and its arguments; by default those of the process.

    Raises:
        SystemExit: always, with the result of `main`.
    """
    begin = main or sys.modules["__main__"].main  # type: ignore[attr-defined]

    def run(arguments: Any) -> Any:
        global _eager_main
        is_eager, _eager_main = _eager_main, False  # the next program decides for itself
        with contextlib.nullcontext() if is_eager else _graph_of_first_api():
            return begin(arguments)

    _find("compat.v1.app").run(run, argv)


def _placeholder(*args: Any, **named: Any) -> Any:
    """Returns `tf.placeholder` of TensorFlow 1.

    Raises:
        ConfigurationError: no graph is being built.
    """
    if tf.executing_eagerly():
        raise ConfigurationError(f"tf.placeholder belongs to a graph. {IN_A_GRAPH}")
    return _find("compat.v1").placeholder(*args, **named)


def _enable_eager(*args: Any, **named: Any) -> None:
    """Lets `_run_app` run the next main program eagerly; code outside of it is eager already."""
    global _eager_main
    _eager_main = True


# Of `tf1` only: the main program of a script of TensorFlow 2 that calls
# `tf.compat.v1.app.run` stays eager.
tf1.app = _TensorFlow("compat.v1.app")
tf1.app.run = _run_app
tf1.placeholder = _placeholder
tf1.enable_eager_execution = tf1.enable_v2_behavior = _enable_eager

# ---- tensorflow_estimator ------------------------------------------------------------------------

_PACKAGE = "tensorflow_estimator"
_FROM_HERE = f"from {__name__} import "
_GENERATED = f"{_PACKAGE}.python.estimator.estimator_export"
# Package → the import lines of names that TensorFlow no longer has, and the names.
_REPLACED = {
    _PACKAGE: [
        (b"import tensorflow as tf", "tf"),
        (b"from tensorflow.python.distribute import estimator_training", "estimator_training"),
        (f"from {_GENERATED} import estimator_export".encode(), "estimator_export"),
    ],
    "tf_slim": [
        (b"from tensorflow.python.framework import ops", "ops"),
        (b"from tensorflow.python.layers import normalization", "normalization"),
        (b"from tensorflow.python.ops import array_ops", "array_ops"),
        (b"from tensorflow.python.ops import control_flow_ops", "control_flow_ops"),
    ],
}
# Modules whose functions differ for several workers, or after one was lost.
_ON_WORKERS = [
    f"{_PACKAGE}.python.estimator.{name}"
    for name in ("estimator", "exporter", "run_config", "training")
]


def estimator_export(*names: str, v1: Any = None) -> Callable[[_T], _T]:
    """Decorates nothing; the original entered the function into TensorFlow's API listing."""
    return lambda decorated: decorated


class _Moved(ModuleType):
    """A module of TensorFlow; names that have left it are looked up in TensorFlow 1."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        return getattr(module, name) if hasattr(module, name) else getattr(tf.compat.v1, name)


ops, array_ops, control_flow_ops = (
    _Moved(f"tensorflow.python.{name}")
    for name in ("framework.ops", "ops.array_ops", "ops.control_flow_ops")
)
normalization = _TensorFlow("compat.v1.layers")


class estimator_training:
    """In place of `tensorflow.python.distribute.estimator_training`, as it was for one worker.

    The original also ran estimators with a distribution strategy on several workers, by a
    coordinator that TensorFlow has removed; now `_workers` runs them.
    """

    @staticmethod
    def init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
        """Takes the cluster, after refusing what it cannot train on."""
        if internals.ESTIMATOR_EXPERIMENTAL.of(config) is not None:
            raise ConfigurationError(
                "RunConfig(experimental_distribute=...) came with tf.contrib.distribute, which "
                "TensorFlow has removed: give train_distribute and eval_distribute in its place."
            )
        workers = tf_config.get("cluster", {})
        if config.train_distribute and workers and "master" not in workers:
            raise ConfigurationError(
                "train_distribute works on one worker only, but TF_CONFIG describes a cluster of "
                f"{', '.join(sorted(workers))}. Leave it out: the workers average their gradients."
            )
        internals.ESTIMATOR_INIT_CLUSTER.of(config)(tf_config)
        internals.ESTIMATOR_INIT_SESSION_CONFIG.of(config)()

    @staticmethod
    def should_run_distribute_coordinator(config: Any) -> bool:
        return False  # TensorFlow has removed the coordinator


def _find_package() -> str:
    """Returns the folder in which `tensorflow_estimator` is installed.

    Raises:
        ConfigurationError: it is not.
    """
    spec = PathFinder.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "generic_trainer.estimator needs the package tensorflow-estimator, which is not "
            'installed: run `pip install "tensorflow-estimator==2.15.*"`.'
        )
    return spec.submodule_search_locations[0]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _REPLACED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if module.__name__ in _ON_WORKERS:
            from generic_trainer.estimator._workers import extend

            extend(module, user_context=_shapes_of_first_api)

    def get_code(self, fullname: str) -> CodeType:
        # Not through the bytecode cache: other Python processes may share it.
        source = b"" if fullname == _PACKAGE else self.get_data(self.path)
        for line, name in _REPLACED[fullname.partition(".")[0]]:
            source = source.replace(line, f"{_FROM_HERE}{name}".encode())
        code: CodeType = self.source_to_code(source, self.path)
        return code


sys.meta_path.insert(0, _Finder())

# ---- names of tf.estimator -----------------------------------------------------------------------

_IMPORT = re.compile(r"^from (tensorflow_estimator\.python\S+) import (\w+)(?: as (\w+))?", re.M)
# Start of a name, in lower case → why there is none.
_GONE = {
    "boostedtrees": (
        "TensorFlow 2.13 took boosted trees out of tf.estimator. Train those of "
        "tensorflow_decision_forests in run_fn instead."
    ),
    "tpu": (
        "TensorFlow has removed what TPU estimators ran on. Train a Keras model under "
        "tf.distribute.TPUStrategy in run_fn instead."
    ),
}


def estimator_names(
    module: str, *listings: str, also: Mapping[str, Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a module that has tf.estimator's names.

    Args:
        module: the module's `__name__`.
        listings: folders of `tensorflow_estimator/_api`, each with a generated `__init__.py` that
            imports every public name from where it is defined. An earlier listing comes before a
            later one.
        also: further public names.
    """

    @functools.cache
    def homes() -> dict[str, tuple[str, str]]:
        return {name: home for listing in reversed(listings) for name, home in _read(listing)}

    def load(name: str) -> Any:
        if also and name in also:
            return also[name]
        for start, reason in _GONE.items():
            if name.lower().startswith(start):
                raise ConfigurationError(f"There is no {module}.{name}: {reason}")
        # Python looks up names such as __path__, for which the package need not be read.
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = homes()[name]
        return getattr(importlib.import_module(home), original)

    def names() -> list[str]:
        return sorted({*homes(), *(also or ()), *getattr(sys.modules[module], "__all__", ())})

    return load, names


def _read(listing: str) -> list[tuple[str, tuple[str, str]]]:
    """Returns each public name, and the module and the name that define it."""
    source = Path(_find_package(), "_api", listing, "__init__.py").read_text(encoding="utf-8")
    return [(public or name, (home, name)) for home, name, public in _IMPORT.findall(source)]
