"""JSON, YAML and protos that people and tools write; values and errors shown in one line.

JSON and YAML are read within limits. A text can have two values under one key, or be deeper than
Python's stack. Reading it raises an error then, so that later code does not have to check.
"""

import contextlib
import datetime
import difflib
import functools
import itertools
import json
import keyword
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.files import gfile, read_text, read_whole
from generic_trainer._core.lazy import needing_tfx
from generic_trainer.errors import DataError

# The remedy for code of TensorFlow 1 that runs outside of a graph.
IN_A_GRAPH = (
    "TensorFlow 1 ran a main program in a graph. With "
    '"from generic_trainer.estimator import tf1 as tf" so does the line '
    '"tf.app.run(lambda argv: main())" in place of "main()"; elsewhere write '
    '"with tf.Graph().as_default():" around it.'
)

_MAX_DEPTH = 64
_MAX_YAML_VALUES = 100_000  # far more than people write by hand
# YAML 1.2 has floats without a point, 1e-4, which PyYAML, a reader of 1.1, takes for strings.
_FLOAT_1_2 = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_SHOWN_CHARACTERS = 60
# Lines that TensorFlow puts around the message of an error, and parts of lines.
_WRAPPING = re.compile(
    r"Graph execution error:|Detected at node|Original stack|<stack traces|Node:|Traceback \(most"
    r"|\[\[(\{\{node |\w+\]\])|Hint: If you want to see a list of allocated tensors"
)
_FUNCTION = re.compile(r"\{\{function_node [^}]*\}\} ?| ?\[Op:.*$")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # Keras 3 prints causes in bold
_BEFORE_CAUSE = re.compile("Exception encountered when calling|in user code:")  # Keras, AutoGraph
_TRACEBACK = "Traceback (most recent call last):\n"
_PATHS = (str, os.PathLike)


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: it is not JSON, has a key twice, is nested too deeply, or contains half a
            character; the message names the position.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    _check_values(value)
    return value


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Returns the object that a JSON text holds; None for `null`.

    Raises:
        ValueError: it holds something else, or `parse_json` cannot read it.
    """
    values = parse_json(text)
    if values is not None and not isinstance(values, dict):
        raise ValueError(f"it holds {describe(values)}")
    return values


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text, with floats as in YAML 1.2, and dates as strings.

    Raises:
        ValueError: it is not YAML, has a key twice, contains itself, or is larger or deeper than
            people write by hand.
    """
    try:
        value = _yaml_loader()(text).get_single_data()
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    except Exception as error:  # any class, for `!!bool x` and `!!timestamp x`
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _check_values(value, _MAX_YAML_VALUES)
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" with the known name that is nearest, or "" if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def argument_names(names: Iterable[str]) -> dict[str, str]:
    """Returns name → name that an input of a signature can have, different for each.

    TensorFlow allows ASCII letters, digits, `_` and `.`, no `_` at the start, and no two names that
    differ in case alone: `"size (m2)"` becomes `size__m2_`. It makes `arg_1st` of `1st`. Python
    3.11 and later allow no word of Python's: `class` becomes `class_`; and functions of TensorFlow
    have an argument `self`.
    """
    name_of: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        cleaned = re.sub(r"[^A-Za-z0-9_.]", "_", name)
        cleaned = f"column{cleaned}" if cleaned.startswith(("_", ".")) else cleaned
        cleaned = f"arg_{cleaned}" if cleaned[:1].isdigit() else cleaned
        cleaned = f"{cleaned}_" if keyword.iskeyword(cleaned) or cleaned == "self" else cleaned
        choices = itertools.chain([cleaned], (f"{cleaned}_{n}" for n in itertools.count(2)))
        # Functions of TensorFlow take `.` for `_`.
        name_of[name] = next(c for c in choices if c.lower().replace(".", "_") not in taken)
        taken.add(name_of[name].lower().replace(".", "_"))
    return name_of


def shown(value: object) -> str:
    """Returns the `repr` of a value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def listed(parts: Sequence[object], separator: str = ", ", most: int = 5) -> str:
    """Returns the first parts for a message, and how many more there are: a table may be wide."""
    first = separator.join(f"{part!s:.400}" for part in parts[:most])
    more = len(parts) - most
    return f"{first} and {more:,} more" if more > 0 else first


def describe(value: object) -> str:
    """Returns a value, as `shown` does, and its type."""
    return f"{shown(value)} of type {type(value).__name__}"


def record_has_module(record: str, name: str) -> bool:
    """Returns whether the `RECORD` of an installed distribution lists a top-level module.

    Its lines are not parsed: TensorFlow's alone has 20,000.
    """
    files = f"\n{record}"
    return f"\n{name}/" in files or f"\n{name}.py," in files


def duration(seconds: float) -> str:
    """Returns a time as pages and logs have it: "0:03:20", "1 day, 2:05:00"."""
    return str(datetime.timedelta(seconds=max(0, round(seconds))))


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; not a boolean, NaN or infinity."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = [key for key, count in counts.items() if count > 1]
        raise ValueError(f"an object has more than one value for {shown(twice)}")
    return values


def _check_values(value: Any, most: float = math.inf) -> None:
    """Raises `ValueError` for values that are nested too deeply, or contain half a character.

    Args:
        value: that of a text; YAML's aliases of aliases can make it billions of values.
        most: how many values there may be.
    """
    levels = [(value, 0)]
    count = 0
    while levels:
        part, level = levels.pop()
        count += 1
        if level == _MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
        if count > most:
            raise ValueError(f"it has more than {most:,} values")
        if isinstance(part, str):
            part.encode()  # a surrogate without its other half: a ValueError that says where
        elif isinstance(part, dict):
            levels += [(inner, level + 1) for inner in (*part, *part.values())]
        elif isinstance(part, (list, tuple, set)):
            levels += [(inner, level + 1) for inner in part]


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader: floats as in YAML 1.2, no dates, no key twice."""

        def flatten_mapping(self, node: Any) -> None:  # called before a mapping is read or merged
            if not hasattr(node, "is_flat"):  # merged keys may be there twice
                node.is_flat = True
                keys = [k for k, _ in node.value if isinstance(k, yaml.ScalarNode)]
                counts = Counter((key.tag, key.value) for key in keys if key.tag != _MERGE)
                if twice := [key for key in keys if counts[key.tag, key.value] > 1]:
                    key = twice[1]
                    raise ValueError(f"the key {key.value!r} is there twice{key.start_mark}")
            super().flatten_mapping(node)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+0123456789."))
    return Loader


def reason_of(error: BaseException) -> str:
    """Returns type and message of an error in one line, without TensorFlow's stack and nodes."""
    message = str(error)
    if isinstance(error, UnicodeDecodeError):  # perhaps of TensorFlow, for the text of its error
        before = error.object[max(error.start - 200, 0) : error.start].rpartition(b"\n")[2]
        line = before + error.object[error.start : error.end + 200].partition(b"\n")[0]
        text = line.decode(errors="backslashreplace")
        message = f"{error.reason} at byte {error.start:,}, in: {text}"
    own = [line for line in own_lines(message) if not _BEFORE_CAUSE.search(line)]
    reason = own[0].strip()[:500].removesuffix(".") if own else ""
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def own_lines(message: str) -> list[str]:
    """Returns the lines of an error's message without TensorFlow's stack, nodes, and colors.

    The message for an error in a graph begins with the stack that built the node, which may take
    thousands of characters, and ends with the cause.
    """
    head, _, tail = without_colors(message).partition(_TRACEBACK)
    lines = list(_own_lines(head))
    of_traceback = list(_own_lines(tail))
    # Of an error in a tf.py_function: the traceback ends as the text before it does.
    is_same = lines and of_traceback and lines[-1].endswith(of_traceback[-1])
    return of_traceback if is_same else lines + of_traceback


def without_colors(text: str) -> str:
    """Returns a text without the escape sequences that color it on a terminal."""
    return _COLORS.sub("", text)


def _own_lines(text: str) -> Iterator[str]:
    indent: float = math.inf  # of the frame that the line belongs to
    for line in text.splitlines():
        own = _FUNCTION.sub("", line).rstrip()
        stripped = own.lstrip()
        if stripped.startswith('File "'):
            indent = len(own) - len(stripped)
        elif len(own) - len(stripped) <= indent or not stripped:  # not the source of the frame
            indent = math.inf
            if stripped and not _WRAPPING.match(stripped):
                yield own


def load_schema(source: Any) -> Any:
    """Returns the `tensorflow_metadata` Schema of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    from tensorflow_metadata.proto.v0 import schema_pb2

    return read_proto(os.fspath(source), schema_pb2.Schema, "schema")


def load_eval_config(source: Any) -> Any:
    """Returns the `tfma.EvalConfig` of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    with needing_tfx("An eval config"):
        from tensorflow_model_analysis.proto import config_pb2

    return read_proto(os.fspath(source), config_pb2.EvalConfig, "eval config")


def load_hyperparameters(source: Any) -> Mapping[str, Any] | None:
    """Returns the `keras_tuner.HyperParameters` config in a file of a Tuner, or of name → value.

    Raises:
        DataError: the file does not hold a JSON object.
    """
    if not isinstance(source, _PATHS):
        return tuner_config(source) if source else None
    path = os.fspath(source)
    try:
        return parse_json_object(read_text(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"Hyperparameters must be a JSON object, but {path} is none: {error}. Run the Tuner "
            "again.",
            path=path,
        ) from error


def is_tuner_config(hyperparameters: Mapping[str, Any]) -> bool:
    """Returns whether these are a `keras_tuner.HyperParameters` config, not name → value.

    A hyperparameter may be called `values`.
    """
    is_config = hyperparameters.keys() <= {"space", "values"}
    return is_config and isinstance(hyperparameters.get("values"), Mapping)


def tuner_config(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns name → value as a config of `keras_tuner.HyperParameters`; a config as it is."""
    if is_tuner_config(values):
        return values
    space = [
        {"class_name": "Fixed", "config": {"name": name, "conditions": [], "value": value}}
        for name, value in values.items()
    ]
    return {"space": space, "values": dict(values)}


def hyperparameter_values(hyperparameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns name → value of a `keras_tuner.HyperParameters` config, or of such a mapping."""
    given = hyperparameters or {}
    values: Mapping[str, Any] = given["values"] if is_tuner_config(given) else given
    return values


def load_statistics(source: Any) -> Any:
    """Returns the `DatasetFeatureStatisticsList` of files, or the proto itself.

    Args:
        source: a path or a pattern of files, which hold the proto as StatisticsGen writes it, or
            in text format where their names end with `txt`.

    Returns:
        The proto, with the data sets of all of the files.

    Raises:
        DataError: no file matches, or one cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    from tensorflow_metadata.proto.v0 import statistics_pb2

    message = statistics_pb2.DatasetFeatureStatisticsList
    pattern = os.fspath(source)
    merged = message()
    with _reading(pattern, message, "statistics"):
        paths = sorted(gfile().glob(pattern)) or [pattern]
    for path in paths:
        with _reading(path, message, "statistics"):
            if path.endswith("txt"):
                merged.MergeFrom(parse_proto(read_text(path), message))
            else:
                merged.MergeFrom(message.FromString(read_whole(path)))
    return merged


def parse_eval_config(text: str) -> Any:
    """Returns the `tfma.EvalConfig` in a text; see `parse_proto`."""
    with needing_tfx("An eval config"):
        from tensorflow_model_analysis.proto import config_pb2

    return parse_proto(text, config_pb2.EvalConfig)


def read_proto(path: str, message: Any, subject: str) -> Any:
    """Returns the proto in a file in text format, or as JSON if it begins with a brace.

    Args:
        path: the file, local or remote.
        message: the class of the proto.
        subject: the name of the file's kind in the error.

    Raises:
        DataError: the file cannot be read as that proto.
    """
    with _reading(path, message, subject):
        return parse_proto(read_text(path), message)


@contextlib.contextmanager
def _reading(path: str, message: Any, subject: str) -> Iterator[None]:
    """Explains errors of a file system or a parser; see `read_proto`."""
    try:
        yield
    except Exception as error:  # the class depends on both
        raise DataError(
            f"the {subject} {path} cannot be read as a {message.DESCRIPTOR.full_name}: {error}",
            path=path,
        ) from error


def parse_proto(text: str, message: Any) -> Any:
    """Returns a proto in text format, or as JSON if it begins with a brace.

    Raises:
        ValueError: the text is not a message of this class.
    """
    from google.protobuf import json_format, text_format

    try:
        parse = json_format.Parse if text.lstrip().startswith("{") else text_format.Parse
        return parse(text, message())
    except Exception as error:  # both parsers raise other errors than `ParseError`, too
        raise ValueError(
            f"it is not a {message.DESCRIPTOR.full_name} in text format or JSON "
            f"({type(error).__name__}: {error})"
        ) from error
