"""Replaces the user's module by a bundle of it under the pipeline root, at compile time.

The pipeline root is known only then, and every machine that runs the pipeline can read it. The
bundle's path goes into the execution property `module_path` in TFX's own form, `module@path`, and
its digest into `module_hash`.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from generic_trainer._core import tfx_names as keys
from generic_trainer.user_code import UserCode, bundle_function, bundle_module_file

__all__ = ["bundle_user_code"]

_BUNDLES_DIR = "_bundles"  # beside TFX's `_wheels`

_logger = logging.getLogger(__name__)


def bundle_user_code(
    module_file: Any, run_fn: Any, pipeline_root: str | None
) -> dict[str, str | None]:
    """Bundles the user's code and returns the execution properties that point to the bundle.

    Code whose path is known only when the pipeline runs (a runtime parameter), code that lies in
    the environment's installed packages, and code of a pipeline without a root stay where they are.

    Raises:
        ModuleFileError: the module file is missing or cannot be read or parsed.
    """
    given = {keys.MODULE_FILE: module_file, keys.RUN_FN: run_fn}
    unbundled = {**given, keys.MODULE_PATH: None, keys.MODULE_HASH: None}
    if not isinstance(module_file or run_fn, str):
        return unbundled
    if not pipeline_root:
        _logger.warning(
            "The pipeline has no root, so %s is not bundled: it must exist where the step runs.",
            module_file or run_fn,
        )
        return unbundled
    destination = os.path.join(pipeline_root, _BUNDLES_DIR)
    if run_fn:
        code = bundle_function(run_fn, destination)
    else:
        code = bundle_module_file(module_file, destination)
    return unbundled if code.bundle is None else _pointing_to(code, run_fn)


def _pointing_to(code: UserCode, run_fn: str | None) -> dict[str, str | None]:
    return {
        keys.MODULE_FILE: None,
        keys.RUN_FN: run_fn,
        keys.MODULE_PATH: f"{code.module}@{code.bundle}",
        keys.MODULE_HASH: code.digest,
    }
