"""Quotes the user's own file and line, in the form that terminals and editors turn into links."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._loader import BundleLoader

__all__ = ["quote_error", "quote_function", "quote_syntax_error"]

# TensorFlow puts whole graph tracebacks into its messages; the start says what is wrong.
_LONGEST_MESSAGE = 2000


def quote_syntax_error(error: SyntaxError | ValueError, path: str) -> str:
    """Returns file, line, source and reason of a file which is not Python."""
    if isinstance(error, SyntaxError) and error.filename:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return f'{type(error).__name__}: {error}\n  File "{path}"'


def quote_error(error: BaseException, code: UserCode) -> str:
    """Returns an exception's type and text, and the innermost line of the user's that it passed."""
    if isinstance(error, SyntaxError):
        return quote_syntax_error(error, code.module)
    text = "".join(traceback.format_exception_only(error)).strip()
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + " …"
    return text + _innermost_line(error, code)


def quote_function(function: Callable[..., Any]) -> str:
    """Returns where a function is defined, "" for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    return _quote_line(code.co_filename, code.co_firstlineno, None, None)


def _innermost_line(error: BaseException, code: UserCode) -> str:
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame, code)
    ]
    if not frames:
        return ""
    frame, line = frames[-1]
    return _quote_line(frame.f_code.co_filename, line, frame.f_code.co_name, frame.f_globals)


def _is_users(frame: FrameType, code: UserCode) -> bool:
    if code.bundle is not None:
        return isinstance(frame.f_globals.get("__loader__"), BundleLoader)
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == code.module.partition(".")[0]


def _quote_line(
    path: str, line: int, function: str | None, variables: dict[str, Any] | None
) -> str:
    place = f'\n  File "{path}", line {line}' + (f", in {function}" if function else "")
    source = linecache.getline(path, line, variables).strip()
    return place + (f"\n    {source}" if source else "")
