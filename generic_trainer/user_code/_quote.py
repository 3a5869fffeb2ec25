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
        return _text(error)
    return f'  File "{path}"\n{_text(error)}'


def quote_error(error: BaseException, code: UserCode) -> str:
    """Returns an exception's type and text, and the innermost line of the user's that it passed."""
    text = _text(error)
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + " …"
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame, code)
    ]
    if not frames:
        return text
    loader = frames[-1][0].f_globals.get("__loader__")
    # Python's import errors say which file lacks the name.
    if isinstance(error, ImportError) and isinstance(loader, BundleLoader):
        text = loader.as_users(text)
    return text + _quote_frame(*frames[-1])


def quote_function(function: Callable[..., Any]) -> str:
    """Returns where a function is defined, "" for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _quote_line(code.co_filename, code.co_firstlineno) if code else ""


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).rstrip()


def _is_users(frame: FrameType, code: UserCode) -> bool:
    if code.bundle is not None:
        return isinstance(frame.f_globals.get("__loader__"), BundleLoader)
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == code.module.partition(".")[0]


def _quote_frame(frame: FrameType, line: int) -> str:
    function = frame.f_code
    place = f", in {function.co_name}"
    return _quote_line(function.co_filename, line, place, frame.f_globals)


def _quote_line(
    path: str, line: int, place: str = "", variables: dict[str, Any] | None = None
) -> str:
    source = linecache.getline(path, line, variables).strip()
    return f'\n  File "{path}", line {line}{place}' + (f"\n    {source}" if source else "")
