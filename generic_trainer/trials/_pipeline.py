"""Inputs of the pipeline, as `fn_args` brings them: configuration, tuned values, features."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from generic_trainer._core.files import gfile, read_whole
from generic_trainer._core.protos import read_schema
from generic_trainer._core.records import READ_ERRORS
from generic_trainer._core.texts import describe
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials._config import read_yaml


def experiment_config(fn_args: Any, trial_class: type) -> Mapping[str, Any]:
    """Returns `custom_config`, or what the YAML file has that it names, relative to the module.

    Raises:
        ConfigurationError: there is no such file, or it is no YAML.
    """
    config = dict(fn_args.custom_config or {})
    path = config.get("experiment_config")
    if isinstance(path, Mapping):
        return path
    if path is None:
        return config
    module = sys.modules[trial_class.__module__]
    path = os.path.join(os.path.dirname(module.__file__ or ""), path)
    if not gfile().exists(path):
        raise ConfigurationError(
            f"custom_config names {path} as experiment_config: there is no file", path=path
        )
    try:
        text = read_whole(path).decode()
    except (OSError, ValueError, *READ_ERRORS) as error:
        raise ConfigurationError(
            f"custom_config names {path} as experiment_config: it cannot be read: {error}",
            path=path,
        ) from error
    return read_yaml(text, path)


def tuned_values(fn_args: Any) -> dict[str, Any]:
    """Returns what a Tuner found: the values of the `keras_tuner.HyperParameters` config.

    Raises:
        ConfigurationError: it is the config of something else.
    """
    config = fn_args.hyperparameters or {}
    values = config.get("values") or {} if isinstance(config, Mapping) else None
    if not isinstance(values, Mapping):
        raise ConfigurationError(
            "Expected hyperparameters as keras_tuner.HyperParameters.get_config() has them, with "
            f"a mapping 'values', got {describe(config)}"
        )
    return dict(values)


def are_features(names: Iterable[str], fn_args: Any) -> bool:
    """Whether the pipeline's schema, or Transform's, has features of all these names."""
    if getattr(fn_args, "transform_graph_path", None):
        import tensorflow_transform as tft

        transformed = tft.TFTransformOutput(fn_args.transform_graph_path)
        return set(names) <= transformed.transformed_feature_spec().keys()
    if not getattr(fn_args, "schema_path", None):
        return False
    return set(names) <= {feature.name for feature in read_schema(fn_args.schema_path).feature}
