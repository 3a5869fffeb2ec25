"""`tf.contrib`, as far as programs with estimators used it: `tf1.contrib`, or imported from here.

::

    from generic_trainer.estimator import tf1 as tf      # instead of: import tensorflow as tf

    tf.contrib.layers.optimize_loss(loss, tf.contrib.framework.get_global_step(), 0.1, "Adam")

    from generic_trainer.trials.experiment.contrib import slim   # of: from tensorflow.contrib
    import generic_trainer.trials.experiment.contrib.slim as slim

1. `learn` has `Experiment` and its companions, for estimators of `tf.estimator`: those of
   `tf.contrib.learn` itself are gone, and its names of premade ones mean `tf.estimator`'s.
2. `layers`, `slim`, and most of `framework`, `losses`, `metrics` and `training` are those of
   tf_slim, which GenericTrainer's extra `slim` installs.
3. The others, such as feature columns, are the names that TensorFlow has for them now. Arguments
   may have their names of then.
4. Deeper modules have the names of their part: `contrib.learn.python.learn.learn_runner` has those
   of `contrib.learn`. `generic_trainer.trials.experiment.python.estimator` has those of
   `tensorflow.python.estimator`.
"""

import contextlib
import functools
import importlib.util
import inspect
import logging
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.experiment._learn import (
    ExportStrategy,
    ModeKeys,
    RunConfig,
    make_export_strategy,
    predict_as_then,
    take_arrays,
)

__all__ = ["ExportStrategy", "ModeKeys", "RunConfig", "make_export_strategy"]  # and the parts

_LOOKUP_OPS = internals.TF_LOOKUP_OPS.path
# Part of tf.contrib → where its names are looked up, one after another.
_PARTS = {
    "autograph": "tf1.autograph",
    "cluster_resolver": "tf1.distribute.cluster_resolver",
    "data": "._learn tf1.data.experimental tf1.data",
    "eager": "._learn tf1",
    "estimator": "._heads ._learn generic_trainer.estimator generic_trainer.estimator.experimental",
    "feature_column": "tf1.feature_column",
    "framework": "tf1.train tf1 tf_slim",
    "layers": "._learn tf1.feature_column tf_slim.layers tf_slim",
    "learn": ". ._learn .learn_runner tf1.estimator tf1.estimator.inputs tf1.estimator.export",
    "lite": "tf1.lite",
    "lookup": _LOOKUP_OPS,
    "losses": "tf_slim.losses",
    "metrics": "tf_slim.metrics",
    "python": "tensorflow_estimator.{path} tf1.estimator",  # of TensorFlow, beside `contrib`
    "rnn": "tf1.nn.rnn_cell tf1.nn",
    "signal": "tf1.signal",
    "slim": "tf_slim tf_slim.nets",
    "training": ". tf_slim.training.training tf_slim.training.evaluation",
    "util": "tf1",
}
# Modules inside the parts, each of which has the names of the whole part.
_MODULES = (
    "basic_session_run_hooks canned dnn dnn_linear_combined estimator estimators experiment export "
    "export_output export_strategy feature_column framework graph_io head hparam initializers "
    "inputs input_fn_utils io layers learn learn_io learn_runner linear lookup lookup_ops losses "
    "metric_keys metric_spec metrics mode_keys model_fn nets numpy_io ops optimizers pandas_io "
    "parsing_utils prediction_key prediction_keys python regularizers run_config "
    "saved_model_export_utils session_run_hook slim summaries training util utils variables"
)
# Name then → name now, in the same places.
_RENAMED = {
    "build_default_serving_input_fn": "build_raw_serving_input_receiver_fn",
    "build_parsing_serving_input_fn": "build_parsing_serving_input_receiver_fn",
    "create_feature_spec_for_parsing": "make_parse_example_spec",
    "input_from_feature_columns": "input_layer",
    "one_hot_column": "indicator_column",
    "real_valued_column": "numeric_column",
    "sparse_column_with_hash_bucket": "categorical_column_with_hash_bucket",
    "sparse_column_with_integerized_feature": "categorical_column_with_identity",
    "sparse_column_with_keys": "categorical_column_with_vocabulary_list",
    "sparse_column_with_vocabulary_file": "categorical_column_with_vocabulary_file",
    "weighted_sparse_column": "weighted_categorical_column",
}
# Places whose functions have renamed arguments, and those: then=now, where a function takes that of
# now and not that of then.
_TAKE_OTHER_ARGUMENTS = ("tf1.feature_column", "tf1.estimator", _LOOKUP_OPS)
_ARGUMENTS = (
    "bucket_size=num_buckets column_name=key columns_to_tensors=features dimension=shape "
    "keys=vocabulary_list label_keys=label_vocabulary mapping=vocabulary_list "
    "normalizer=normalizer_fn shared_embedding_name=shared_embedding_collection_name "
    "sparse_id_column=categorical_column sparse_id_columns=categorical_columns "
    "vocab_size=vocabulary_size weight_column_name=weight_column "
    "weight_column_name=weight_feature_key"
)
# Arguments that are taken and ignored, where a function does not take them.
_IGNORED = {"combiner", "dtype", "enable_centered_bias", "fix_global_step_increment_bug", "scope"}
# Names that moved into another place than their part's.
_MOVED = {
    "layers.embedding_lookup_unique": "tf1.nn.embedding_lookup",
    "layers.safe_embedding_lookup_sparse": "tf1.nn.safe_embedding_lookup_sparse",
    "util.constant_value": "tf1.get_static_value",
}

# What premade estimators of tf.contrib.learn made of the losses in a batch.
_MEAN = "weighted_sum_over_batch_size"

_logger = logging.getLogger(__name__)


class _Part(ModuleType):
    """A part of tf.contrib, or a module inside it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = _path(self.__name__)
        part = path.partition(".")[0]
        _refuse(f"{part}.{name}")
        if f"{part}.{name}" in _MOVED:
            return _source(_MOVED[f"{part}.{name}"])
        for source in _PARTS[part].format(path=path).split():
            with contextlib.suppress(AttributeError, ModuleNotFoundError):
                member = getattr(_source(source), _RENAMED.get(name, name))
                return _as_then(member, name, part) if source in _TAKE_OTHER_ARGUMENTS else member
        if name in _MODULES.split():
            return importlib.import_module(f"{self.__name__}.{name}")
        if "tf_slim" in _PARTS[part] and importlib.util.find_spec("tf_slim") is None:
            raise ConfigurationError(
                f"tf.contrib.{path}.{name} is looked for in tf_slim, which is not installed: "
                "pip install tf_slim, or GenericTrainer's extra `slim`."
            )
        raise AttributeError(
            f"tf.contrib.{path}.{name} is not available here, and no successor of it is known: "
            "check the spelling, or write it with the names of TensorFlow 1.",
            name=name,
        )


class _Finder(MetaPathFinder, Loader):
    """Imports the parts, and the modules inside them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith((f"{__name__}.", f"{__package__}.python")):
            return None
        part, *modules = _path(fullname).split(".")
        _refuse(".".join([part, *modules[-1:]]))
        is_known = part in _PARTS and set(modules) <= set(_MODULES.split())
        return ModuleSpec(fullname, self, is_package=True) if is_known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Part(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: names are looked up when they are used."""


__path__: list[str] = []  # makes this module a package, for `import ….contrib.slim`
sys.meta_path.append(_Finder())


def _path(module: str) -> str:
    return module.removeprefix(f"{__package__}.").removeprefix("contrib.")


def _source(name: str) -> Any:
    if name.startswith("tf1"):
        return pkgutil.resolve_name(f"generic_trainer.estimator:{name}")
    return importlib.import_module(name, __package__)


@functools.cache
def _successors() -> Mapping[str, str]:
    """Returns each part or name that has left TensorFlow, and what took its place."""
    text = Path(__file__).with_name("contrib_names.txt").read_text("utf-8")
    lines = (line.split(" <- ") for line in text.splitlines() if not line.startswith("#"))
    return {name: successor for successor, names in lines for name in names.split()}


def _refuse(path: str) -> None:
    if path in _successors():
        raise ConfigurationError(f"tf.contrib.{path} is gone: {_successors()[path]} took its place")


def _as_then(now: Any, name: str, part: str) -> Any:
    """Returns a function of a part that takes the arguments of then."""
    if not callable(now):
        return now
    taken = inspect.signature(now).parameters

    @functools.wraps(now)
    def call(*args: Any, **named: Any) -> Any:
        if len(args) > 2 and name.startswith("sparse_column"):  # whose order has changed
            raise ConfigurationError(f"tf.contrib.layers.{name}: give {args[2:]} by name")
        for then, today in (pair.split("=") for pair in _ARGUMENTS.split()):
            if then in named and then not in taken and today in taken:
                named[today] = named.pop(then)
        for ignored in named.keys() & _IGNORED - taken.keys():
            value = named.pop(ignored)
            level = logging.WARNING if value in ("mean", "sqrtn") else logging.INFO
            _logger.log(level, "%s(%s=%r): the argument is ignored", name, ignored, value)
        if part == "learn" and "loss_reduction" in taken:  # tf.estimator's default is the sum
            named.setdefault("loss_reduction", _MEAN)
        made = now(*args, **named)
        if not hasattr(made, "train"):
            return made
        if part == "learn":
            predict_as_then(made)
        return take_arrays(made)

    return call


def __getattr__(name: str) -> ModuleType:
    _refuse(name)
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"tf.contrib.{name} is not available here; available are {', '.join(_PARTS)}"
    )
