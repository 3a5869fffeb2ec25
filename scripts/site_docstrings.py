"""Docstrings as Markdown: mkdocstrings calls this for each, see mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension


class DocstringsAsMarkdown(Extension):
    """Takes away the `::` before code, which reStructuredText has and Markdown does not need."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)::$", ":", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^\s*:\n", "", obj.docstring.value)
