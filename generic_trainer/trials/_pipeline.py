"""Inputs of the pipeline, as `fn_args` brings them: configuration, tuned values, examples."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from generic_trainer._core.files import read_whole
from generic_trainer._core.records import READ_ERRORS
from generic_trainer._core.texts import (
    describe,
    hyperparameter_values,
    load_schema,
    parse_yaml,
)
from generic_trainer._core.tfx_names import TRANSFORMED_SCHEMA
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.trials._config import ExperimentSettings

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")


class Pipeline:
    """What a `run_fn` sees: the attributes are those of its argument.

    ::

        pipeline = self.context.pipeline        # in a trial class
        pipeline = trials.get_pipeline()        # in a function that it calls, or in an Experiment
        pipeline.train_files, pipeline.num_examples["train"], pipeline.base_model

    Attributes:
        fn_args: the argument of `run_fn`.
    """

    def __init__(self, fn_args: Any) -> None:
        """Takes the argument of `run_fn`."""
        self.fn_args = fn_args

    def __getattr__(self, name: str) -> Any:
        """Returns this attribute of the argument of `run_fn`."""
        if name.startswith("__") or name == "fn_args":  # asked by copies, which have nothing yet
            raise AttributeError(name)
        return getattr(self.fn_args, name)

    @functools.cached_property
    def schema(self) -> Any:
        """The `Schema` of the examples, Transform's where there is one; None without either."""
        graph = self.fn_args.transform_graph_path
        path = os.path.join(graph, TRANSFORMED_SCHEMA) if graph else self.fn_args.schema_path
        return load_schema(path or None)

    def examples(
        self,
        split: Literal["train", "eval"],
        batch_size: int,
        label_key: str | None = None,
        *,
        seed: int | None = None,
    ) -> tf.data.Dataset:
        """Returns batches of the component's examples, read as `data_accessor` reads them.

        Args:
            split: "train" is shuffled and has no end; "eval" is one pass, in order.
            batch_size: examples in a batch.
            label_key: the feature that is the label; None leaves all features together.
            seed: what shuffles.

        Returns:
            Feature → tensor [batch_size, ...], or pairs of that and the label.

        Raises:
            ConfigurationError: the schema is missing.
            DataError: the files cannot be read.
        """
        is_training = split == "train"
        files = self.fn_args.train_files if is_training else self.fn_args.eval_files
        if files and self.schema is None:
            raise ConfigurationError(
                "Examples are read by a schema: pass schema=..., or transform_graph=..., to the "
                "component."
            )
        from generic_trainer.data import TensorFlowDatasetOptions

        options = TensorFlowDatasetOptions(
            batch_size,
            num_epochs=None if is_training else 1,
            shuffle=is_training,
            shuffle_seed=seed,
            label_key=label_key,
        )
        return self.fn_args.data_accessor.tf_dataset_factory(files, options, self.schema)


class Current(Generic[T]):
    """What runs in this context; in a thread of a library, which has none, what began last.

    Generators, `py_function`s and Sequences are called in such threads.
    """

    def __init__(self, name: str) -> None:
        self._variable: contextvars.ContextVar[T] = contextvars.ContextVar(name)
        self._begun: list[T] = []

    @contextlib.contextmanager
    def set(self, value: T) -> Iterator[None]:
        token = self._variable.set(value)
        self._begun.append(value)
        try:
            yield
        finally:
            self._begun.remove(value)
            self._variable.reset(token)

    def get(self) -> T | None:
        return self._variable.get(self._begun[-1] if self._begun else None)


_current: Current[Pipeline] = Current("current_pipeline")


@contextlib.contextmanager
def in_pipeline(fn_args: Any) -> Iterator[Pipeline]:
    """Makes `get_pipeline` return the inputs in the argument of a `run_fn`."""
    pipeline = Pipeline(fn_args)
    with _current.set(pipeline):
        yield pipeline


def current_pipeline() -> Pipeline | None:
    """Returns what `get_pipeline` does; None where it raises."""
    return _current.get()


def get_pipeline() -> Pipeline:
    """Returns the inputs of the component that runs this code.

    Raises:
        ConfigurationError: it runs outside of a pipeline, in a script or a notebook.
    """
    pipeline = _current.get()
    if pipeline is None:
        raise ConfigurationError(
            "No inputs of a pipeline are available here: they can be read only in code that the "
            "component runs, and not when the module is imported."
        )
    return pipeline


def experiment_config(fn_args: Any, module_file: str | None) -> Mapping[str, Any]:
    """Returns `custom_config`, or the YAML file that it names, relative to the module.

    Raises:
        ConfigurationError: the file cannot be read, or `custom_config` has fields beside it.
    """
    config = dict(fn_args.custom_config or {})
    given = config.get("experiment_config", config)
    path = None
    if isinstance(given, str):
        path = os.path.join(os.path.dirname(module_file or ""), given)
        try:
            given = parse_yaml(read_whole(path).decode())
        except (OSError, ValueError, *READ_ERRORS) as error:
            raise ConfigurationError(
                f"experiment_config cannot be read: {error}", path=path
            ) from error
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "experiment_config must be a mapping, or the path of a YAML file that has one, got "
            f"{describe(given)}",
            path=path,
        )
    if given is not config and (ignored := config.keys() & ExperimentSettings.model_fields):
        names = ", ".join(sorted(ignored))
        raise ConfigurationError(
            f"custom_config has {names} beside experiment_config: move that into the latter",
            path=path,
        )
    return given


def tuned_values(fn_args: Any) -> dict[str, Any]:
    """Returns the component's hyperparameters: a Tuner's result, or those that were given."""
    given = fn_args.hyperparameters
    if not isinstance(given, Mapping | None):
        raise ConfigurationError(
            "Expected hyperparameters as name → value, or as "
            f"keras_tuner.HyperParameters.get_config() has them, got {describe(given)}"
        )
    return dict(hyperparameter_values(given))


def signature_spec(name: str, part: Any) -> tf.TensorSpec:
    """Returns the spec of an input of a signature, for batches of any size.

    Raises:
        ExportError: it is sparse or ragged.
    """
    import tensorflow as tf

    if not isinstance(part, tf.Tensor):
        raise ExportError(
            f"The input {name!r} is a {type(part).__name__}, which a signature cannot take: make "
            "it dense in the validation data"
        )
    shape = None if part.shape.rank is None else [None, *part.shape[1:]]
    return tf.TensorSpec(shape, part.dtype, name)


def are_features(names: Iterable[str], fn_args: Any) -> bool:
    """Whether the pipeline's schema, or Transform's, has features of all these names."""
    schema = Pipeline(fn_args).schema
    return schema is not None and set(names) <= {feature.name for feature in schema.feature}
