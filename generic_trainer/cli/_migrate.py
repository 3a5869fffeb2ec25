"""`generic-trainer migrate`: replaces TFX's Trainer in a pipeline, and lists unsupported code.

The source is parsed and never imported, because importing a pipeline may have any effect.
"""

import argparse
import ast
import codecs
import dataclasses
import difflib
import io
import itertools
import json
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.files import replace_content
from generic_trainer._core.keras import LEGACY_VALUES, LEGACY_VARIABLE
from generic_trainer.cli._options import add_command
from generic_trainer.errors import ConfigurationError, ModuleFileError

# Paths of TFX's Trainers → the start of our import line, and the imported name.
_OURS = ("from generic_trainer import", "GenericTrainer")
_OURS_ON_VERTEX = ("from generic_trainer.vertex import", "Trainer")
_VERTEX = "extensions.google_cloud_ai_platform"
_TRAINERS = {
    "tfx.components.Trainer": _OURS,
    "tfx.v1.components.Trainer": _OURS,
    "tfx.components.trainer.component.Trainer": _OURS,
    f"tfx.{_VERTEX}.Trainer": _OURS_ON_VERTEX,
    f"tfx.v1.{_VERTEX}.Trainer": _OURS_ON_VERTEX,
    f"tfx.{_VERTEX}.trainer.component.Trainer": _OURS_ON_VERTEX,
}
_EXECUTORS_OF_TFX = "tfx.components.trainer.executor."
_KERAS_3_SAVED = (
    "of a Keras 3 model this writes one that only Python can load: rejected by the check `session`"
)
_KERAS_3_SAVE = "save() of a Keras 3 model does not write a SavedModel, and rejects a directory"
_EXPORT = "training.export_model(model, fn_args) of generic_trainer, or model.export(directory)"
_KERAS_2 = f"With Keras 2 these calls stay: set {LEGACY_VARIABLE}=1 before TensorFlow is imported."
_SILENCE = "contract=ServingContract(severities={'session': 'warn'})"
_ESTIMATOR = re.compile(r"tensorflow(\.compat\.v1)?\.estimator\b.*")
# A notebook is one source, whose cells begin with a comment; a magic becomes a statement of a line.
_CELL = "# %% cell of a notebook\n"
_CONTINUED = "\x1f"
_MAGIC = "pass  # magic of a notebook: "
_MAGIC_VALUE = "None  # magic of a notebook: "
# A replacement of a piece of source: its first character, from 0, the one after it, the new text.
_Edit = tuple[int, int, str]
_MAGICS = re.compile(r"(?m)^(|[ \t]+(?=!))([%!](?![=\s])(?:.*\\\n)*)")
_HELP = re.compile(r"(?m)^([ \t]*)((?:\?{1,2}[\w.%*]+|[\w.%*]+\?{1,2})[ \t]*)$")
_MAGIC_VALUES = re.compile(r"(?m)^([ \t]*[\w.,\[\]\"' \t]+=[ \t]*)([%!](?![=\s])(?:.*\\\n)*)")
# Magics of whole cells that are Python; other cells are files, or code of other languages.
_PYTHON_CELLS = (
    "capture",
    "debug",
    "lprun",
    "memit",
    "mprun",
    "prun",
    "skip_for_export",
    "snakeviz",
    "time",
    "timeit",
)


@dataclasses.dataclass(frozen=True)
class _Warning:
    """Code that will be rejected or needs an edit by hand; `line` is from 1."""

    line: int
    message: str
    remedy: str


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _migrate,
        "Replace TFX's Trainer with GenericTrainer in a pipeline",
        "Shows the necessary changes of a pipeline as a diff, and lists parts of it and of its "
        "module files that will be rejected. Exit status 1: it found some; 2: a file cannot be "
        "read or written, and the others are done.",
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="pipelines and module files, .py or .ipynb"
    )
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--json", action="store_true", help="print diffs and warnings as JSON")


def _migrate(options: argparse.Namespace) -> int:
    read, failed = _read(options.files)
    warnings = {source.path: list(source.warnings()) for source in read}
    if read and not any(source.is_known for source in read):
        message = "neither TFX's Trainer nor run_fn found: tfx.components.Trainer by another name?"
        warnings[read[0].path].append(_Warning(1, message, "change the import by hand"))
    if options.write:
        for source in read:
            try:
                source.write()
            except ConfigurationError as error:
                failed[source.path] = str(error)
    if options.json:
        files: dict[str, dict[str, Any]] = {
            source.path: {
                "diff": source.diff(),
                "warnings": [dataclasses.asdict(warning) for warning in warnings[source.path]],
            }
            for source in read
        }
        for path, message in failed.items():
            files.setdefault(path, {})["error"] = message
        print(json.dumps({"written": options.write, "files": files}, indent=2))
    else:
        for source in read:
            print(source.diff() or f"{source.path}: nothing to change\n", end="")
        for path, listed in warnings.items():
            for warning in listed:
                print(
                    f"{path}:{warning.line}: {warning.message}\n    → {warning.remedy}",
                    file=sys.stderr,
                )
        if any(
            warning.remedy.startswith(_EXPORT) for warning in itertools.chain(*warnings.values())
        ):
            print(_KERAS_2, file=sys.stderr)
        if not options.write and any(source.edits for source in read):
            print("No files changed; pass --write to apply.", file=sys.stderr)
        for message in failed.values():
            print(f"error: {message}", file=sys.stderr)
    return 2 if failed else int(any(warnings.values()))


class _Source:
    """A Python file or a notebook, with its edits and warnings."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            content = Path(path).read_bytes()
            self._notebook: Any = None
            self._newline = "\r\n" if b"\r\n" in content else "\n"
            if path.endswith(".ipynb"):
                self._encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8"
                text = content.decode(self._encoding)
                self._notebook = json.loads(text) if text.strip() else {"cells": []}
                text = "".join(map(_cell_text, self._python_cells()))
            else:
                self._encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
                text = content.decode(self._encoding)
            tree = ast.parse(text)
        except SyntaxError as error:
            line = f":{error.lineno}" if error.lineno else ""  # an encoding has no line
            raise ModuleFileError(f"{path}{line}: {error.msg}", path=path) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}", path=path) from error
        self._nodes = list(ast.walk(tree))
        self._text = text
        # Like Python's parser, and unlike str, bytes do not begin a line at a form feed.
        self._lines = text.encode("utf-8").splitlines(keepends=True)
        imports = ast.Import, ast.ImportFrom
        self._imports = [node for node in self._nodes if isinstance(node, imports)]
        self._names = dict(name for node in self._imports for name in _imported(node))
        self._estimators = {  # name that was imported → line of a use
            ast.unparse(node).split(".")[0]: node.lineno
            for node in self._nodes
            if isinstance(node, (ast.Attribute, ast.Name))
            and _ESTIMATOR.fullmatch(self._path_of(node))
        }
        self.edits = [*self._of_imports(), *self._of_uses(), *self._of_estimators()]

    def _python_cells(self) -> list[dict[str, Any]]:
        cells = (cell for cell in self._notebook["cells"] if cell["cell_type"] == "code")
        starts = ((cell, re.match(r"\s*%%(\w*)", "".join(cell["source"]))) for cell in cells)
        return [cell for cell, magic in starts if not magic or magic[1] in _PYTHON_CELLS]

    @property
    def is_known(self) -> bool:
        """Whether the file has a Trainer, imports this package, or defines a Trainer's function."""
        names = r"\b(generic_trainer|run_fn|trainer_fn)\b"
        return bool(self.edits or re.search(names, self._text))

    def warnings(self) -> Iterator[_Warning]:
        """Yields code that the edits do not mend."""
        for name, line in self._estimators.items():
            if name != "tf" or not any(self._of_estimators()):
                message = f"{name}: TensorFlow has no estimators since 2.16"
                yield _Warning(line, message, "use `from generic_trainer.estimator import tf`")
        used = {getattr(node, "id", "") for node in self._nodes}
        for node in self._nodes:
            if isinstance(node, ast.Call):
                yield from self._warnings_of_call(node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None) or node.names[0].name
                if module.split(".")[0] in ("determined", "pedl"):
                    message = f"{module} is replaced by generic_trainer.trials"
                    yield _Warning(node.lineno, message, "see docs/coming-from-other-trainers.md")
                star = node.names[0].name == "*" and _TRAINERS.get(f"{module}.Trainer")
                if star and "Trainer" in used - self._names.keys():
                    remedy = f"add after it: {_import_line(*star, 'Trainer')}"
                    yield _Warning(node.lineno, "the Trainer of `import *` is not replaced", remedy)

    def _warnings_of_call(self, node: ast.Call) -> Iterator[_Warning]:
        path = self._path_of(node.func)
        if path in _TRAINERS or path.startswith("generic_trainer."):
            for keyword in node.keywords:
                if keyword.arg == "custom_executor_spec" and not self._is_of_tfx(keyword.value):
                    message = "custom_executor_spec runs another executor, without the checks"
                    remedy = "omit it: GenericTrainer does the work of GenericExecutor itself"
                    yield _Warning(keyword.value.lineno, message, remedy)
        elif path.endswith("export_eval_savedmodel"):
            message = "TensorFlow Model Analysis does not read an EvalSavedModel any more"
            yield _Warning(node.lineno, message, "omit it: the Evaluator scores the serving model")
        elif os.environ.get(LEGACY_VARIABLE) in LEGACY_VALUES:
            return  # Keras 2 can save as it did
        elif path == "tensorflow.saved_model.save":
            yield _Warning(node.lineno, _KERAS_3_SAVED, f"{_EXPORT}, or {_SILENCE}")
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "save"
            and "serving_model_dir" in ast.unparse(node)
        ):
            yield _Warning(node.lineno, _KERAS_3_SAVE, _EXPORT)

    def _is_of_tfx(self, spec: ast.expr) -> bool:
        """Whether it names an executor of TFX's Trainer: the component runs its own instead."""
        nodes = (node for node in ast.walk(spec) if isinstance(node, (ast.Name, ast.Attribute)))
        return any(self._path_of(node).startswith(_EXECUTORS_OF_TFX) for node in nodes)

    def _of_imports(self) -> Iterator[_Edit]:
        """`from tfx.components import Trainer`, alone or among others."""
        for node in self._imports:
            paths = zip(_imported(node), node.names, strict=True)
            known = [(_TRAINERS.get(path), alias) for (_, path), alias in paths]
            ours = [_import_line(*to, alias.asname or alias.name) for to, alias in known if to]
            if ours and isinstance(node, ast.ImportFrom):
                separator = self._separator(node)
                others = self._import_others(node, [alias for to, alias in known if to])
                yield self._replaced(node, separator.join([*others, *ours]))

    def _of_uses(self) -> Iterator[_Edit]:
        """`tfx.components.Trainer(...)`, and the imports that this needs."""
        needed: dict[tuple[ast.Import | ast.ImportFrom, str], None] = {}
        for node in self._nodes:
            if isinstance(node, ast.Attribute) and (known := _TRAINERS.get(self._path_of(node))):
                name = "GenericTrainer" if known is _OURS else "VertexTrainer"
                line = _import_line(*known, name)
                first = ast.unparse(node).split(".")[0]
                imports = (
                    statement for statement in self._imports if first in dict(_imported(statement))
                )
                needed |= {(statement, line): None for statement in imports}  # in whichever scope
                yield self._replaced(node, name)
        for statement, line in needed:
            start = self._position(statement.lineno, statement.col_offset)
            yield start, start, line + self._separator(statement)

    def _of_estimators(self) -> Iterator[_Edit]:
        """`import tensorflow as tf` if `tf.estimator` is used, which new TensorFlows lack."""
        for node in self._imports:
            if "tf" in self._estimators and ast.unparse(node) == "import tensorflow as tf":
                yield self._replaced(node, "from generic_trainer.estimator import tf")

    def _separator(self, node: ast.stmt) -> str:
        """Returns what separates statements in the place of one: a line break, or a semicolon."""
        start = self._position(node.lineno, 0)
        before = self._text[start : self._position(node.lineno, node.col_offset)]
        # Cells of a notebook are joined by "\n".
        newline = "\n" if self._notebook is not None else self._newline
        return "; " if before.strip() else f"{newline}{before}"

    def _import_others(self, node: ast.ImportFrom, removed: list[ast.alias]) -> list[str]:
        """Returns the import of the other names, if any, else the comments between the names."""
        start, end, _ = self._replaced(node, "")
        statement = self._text[start:end]
        rest = [ast.unparse(alias) for alias in node.names if alias not in removed]
        if not rest:
            tokens = tokenize.generate_tokens(io.StringIO(statement).readline)
            comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
            return comments if self._separator(node) != "; " else []
        in_one_line = f"from {node.module} import {', '.join(rest)}"
        if node.lineno == node.end_lineno:
            return [in_one_line]
        for alias in reversed(removed):  # in its place, because lines have comments
            first, last, _ = self._replaced(alias, "")
            before = statement[: first - start]
            after = statement[last - start :]
            after, commas = re.subn(r"\A[ \t]*,[ \t]*", "", after)
            if not commas:  # as in lines that begin with a comma
                before = re.sub(r"[ \t]*,[ \t]*\Z", "", before)
            if not before.rpartition("\n")[2].strip() and re.match(r"\r?\n", after):
                before = before.rstrip(" \t")
                after = after.partition("\n")[2]
            statement = before + after
        try:
            ast.parse(statement)
        except SyntaxError:  # such as a line that begins with a comma
            return [in_one_line]
        return [statement]

    def _path_of(self, node: ast.expr) -> str:
        """Returns the full import path of a dotted name; "" if it was not imported."""
        first, dot, rest = ast.unparse(node).partition(".")
        return self._names[first] + dot + rest if first in self._names else ""

    def _replaced(self, node: ast.stmt | ast.expr | ast.alias, text: str) -> _Edit:
        end = self._position(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self._position(node.lineno, node.col_offset), end, text

    def _position(self, line: int, column: int) -> int:
        """Converts a position of a syntax tree, whose lines are from 1 and columns in bytes."""
        before = b"".join(self._lines[: line - 1])
        return len((before + b"".join(self._lines[line - 1 : line])[:column]).decode("utf-8"))

    def changed(self) -> str:
        """Returns the source with all edits made."""
        text = self._text
        for start, end, new in sorted(self.edits, key=lambda edit: edit[0], reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def diff(self) -> str:
        """Returns the edits in the format of `diff -u`."""
        before, after = (text.splitlines(keepends=True) for text in (self._text, self.changed()))
        return "".join(difflib.unified_diff(before, after, self.path, self.path))

    def write(self) -> None:
        """Makes the edits in the file."""
        if not self.edits:
            return
        text = self.changed()
        if self._notebook is not None:
            for hidden, shown in ((_MAGIC, ""), (_MAGIC_VALUE, ""), (_CONTINUED, "\n")):
                text = text.replace(hidden, shown)
            _, *cells = text.split(_CELL)
            for cell, source in zip(self._python_cells(), cells, strict=True):
                cell["source"] = source.removesuffix("\n").splitlines(keepends=True)
            text = json.dumps(self._notebook, indent=1, ensure_ascii=False) + "\n"
            text = text.replace("\n", self._newline)
        try:
            replace_content(self.path, text.encode(self._encoding))
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be written: {error.strerror}", path=self.path
            ) from error


def _read(paths: Iterable[str]) -> tuple[list[_Source], dict[str, str]]:
    """Returns the files that can be read, and path → error of the others."""
    read = []
    failed = {}
    for path in paths:
        try:
            read.append(_Source(path))
        except (ConfigurationError, ModuleFileError) as error:
            failed[path] = str(error)
    return read, failed


def _cell_text(cell: Mapping[str, Any]) -> str:
    text = "".join(cell["source"])
    for pattern, start in ((_MAGIC_VALUES, _MAGIC_VALUE), (_HELP, _MAGIC), (_MAGICS, _MAGIC)):
        for magic in reversed([*pattern.finditer(text)]):
            hidden = start + magic[2].replace("\n", _CONTINUED)
            text = text[: magic.start(2)] + hidden + text[magic.end() :]
    return f"{_CELL}{text}\n"


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yields each name that an import brings, and the full path of the imported object."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.split(".")[0]
            yield alias.asname or path, path
    else:
        for alias in node.names:
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module}.{alias.name}"


def _import_line(start: str, name: str, local_name: str) -> str:
    return f"{start} {name}" if name == local_name else f"{start} {name} as {local_name}"
