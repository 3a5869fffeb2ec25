"""Docstrings as Markdown: mkdocstrings calls this for each, see mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

# The package's names of constrained types → the types that a reader knows.
_TYPES = {
    "AtLeastZero": "float",
    "Count": "int",
    "Names": "tuple[str, ...]",
    "Positive": "float",
    "PositiveWhole": "int",
    "Signature": "str | SignatureSpec",
    "Tensors": "Mapping[str, str]",
    "Text": "str",
    "_Installed": "str",
    "_Workers": "int",
}


class DocstringsAsMarkdown(Extension):
    """Takes away the `::` before code, which reStructuredText has and Markdown does not need."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Changes the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)::$", ":", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^\s*:\n", "", obj.docstring.value)

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        """Reduces the type of an option to what its author may pass."""
        if attr.annotation is None:
            return
        annotation = attr.annotation
        if str(annotation).startswith("Annotated["):
            annotation = annotation.slice.elements[0]
        words = re.sub(r"\b\w+\b", lambda word: _TYPES.get(word[0], word[0]), str(annotation))
        attr.annotation = words
