"""Files that a command's options name: what is not there is said before TensorFlow is imported."""

from __future__ import annotations

import os

from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError, raise_problems


def require_files(**paths: str | None) -> None:
    """Checks that local files and directories exist; remote ones are found or missed later.

    Args:
        **paths: an option → what was given for it; in capitals, a word without a name.

    Raises:
        ConfigurationError: some are missing; says all of them.
    """
    problems = [
        f"{name if name.isupper() else '--' + name.replace('_', '-')}: {path} does not exist"
        for name, path in paths.items()
        if path and not is_remote(path) and not _exists(path)
    ]
    raise_problems(ConfigurationError, "wrong options", problems)


def _exists(path: str) -> bool:
    # A module file may lie in a zip: code.zip/package/trainer.py.
    archive = path.partition(".zip/")[0] + ".zip"
    return os.path.exists(path) or (".zip/" in path and os.path.isfile(archive))
