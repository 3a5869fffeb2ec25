"""Calls the user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generic_trainer.errors import GenericTrainerError, TrainingError
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._hints import hint
from generic_trainer.user_code._quote import quote_error

__all__ = ["call_user_function"]


def call_user_function(function: Callable[..., Any], fn_args: Any, code: UserCode) -> Any:
    """Returns `function(fn_args)`.

    1. An exception becomes the cause of a `TrainingError` that quotes the user's line.
    2. So does `sys.exit`, whatever its status: a script's way to end is not a trained model.
    3. Errors of this package, which say already what to do, and `KeyboardInterrupt` pass.

    Args:
        function: what `user_function` has yielded.
        fn_args: its one argument.
        code: where the function is, to tell its frames from those of the libraries.

    Raises:
        TrainingError: the function raised.
    """
    try:
        return function(fn_args)
    except GenericTrainerError:
        raise
    except (Exception, SystemExit) as error:
        quoted = quote_error(error, code) + hint(error, code)
        raise TrainingError(
            f"{code.function} of module {code.module!r} failed.\n{quoted}"
        ) from error
