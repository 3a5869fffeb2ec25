"""Where an export goes and what it is made from."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from generic_trainer.errors import ConfigurationError

__all__ = ["Source", "find_source"]


@dataclasses.dataclass(frozen=True)
class Source:
    """The places that an export needs to know.

    Attributes:
        directory: the SavedModel is written there.
        transform_graph: a path or a `tft.TFTransformOutput`; None where there is no Transform.
        schema: a path or a `Schema` proto of the raw features; None where there is none.
    """

    directory: str
    transform_graph: Any = None
    schema: Any = None


def find_source(target: Any, transform_graph: Any = None, schema: Any = None) -> Source:
    """Takes apart what the user names as the target; explicit arguments come first.

    Args:
        target: a directory, or an object with the attributes of TFX's `FnArgs`.
        transform_graph: see `Source`.
        schema: see `Source`.

    Raises:
        ConfigurationError: the target is neither.
    """
    if isinstance(target, (str, os.PathLike)):
        return Source(os.fspath(target), _path(transform_graph), _path(schema))
    directory = getattr(target, "serving_model_dir", None)
    if not directory:
        raise ConfigurationError(
            "export_model needs a directory, or the fn_args of run_fn with a serving_model_dir, "
            f"but got {target!r}."
        )
    return Source(
        os.fspath(directory),
        _path(transform_graph or getattr(target, "transform_graph_path", None)),
        _path(schema or getattr(target, "schema_path", None)),
    )


def _path(place: Any) -> Any:
    return os.fspath(place) if isinstance(place, os.PathLike) else place or None
