"""Messages for errors of the user's code: file, line and a remedy.

Lines are quoted in the form that terminals and editors turn into links.
"""

import builtins
import contextlib
import inspect
import itertools
import linecache
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from types import FrameType, ModuleType
from typing import Any

from generic_trainer._core.lazy import OF_TFX, TFX_EXTRA
from generic_trainer._core.texts import IN_A_GRAPH, did_you_mean, own_lines, without_colors
from generic_trainer.user_code._archive import UserCode, installed_at, top_level
from generic_trainer.user_code._loader import UNPACKED_PREFIX, BundleLoader

_LONGEST_MESSAGE = 2000
_MOST_CAUSES = 10
_AUTOGRAPH = "__autograph_generated_file"  # in the path of TensorFlow's copies of functions
_NODE = re.compile(r"Detected at node '?([^\s']+)'? defined|\{\{node ([^}]+)\}\}")
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.M)
_NEEDS_GRAPH = re.compile(
    r"\bnot\b[^.]*eager execution|a function when eager execution|When eager execution is enabled,"
    r"|Session graph is empty"
)
_OF_TENSORFLOW_1 = re.compile(r"(tensorflow|keras)(\..+)?\.(estimator|contrib)")
_API_PARTS = ("_api", "v2")  # of TensorFlow's modules, whose public names do not have them
# What Keras 3 says to a call of Keras 2 that saves a SavedModel.
_REFUSALS_TO_SAVE = (
    "`save_format` argument",
    "Invalid filepath extension for saving",
    "The following argument(s) are not supported: [",
)
_RELATIVE_IMPORT = re.compile(r"\bfrom\s*\.")
_NOT_IN_VOCABULARY = re.compile("When `num_oov_indices=0` all inputs should be in vocabulary")
_OF_NONE = re.compile(r"\bNoneType\b")
_DIMENSION = re.compile("shape|dim")
_VALUE_OF = re.compile(r"\b(\w+)\.value\b")
_LOOP = re.compile(r"\bfor (\w+) in (.+)")
_STEPS = re.compile(r"\.((?:train|eval)_steps)\b")


def quote_syntax_error(error: SyntaxError | ValueError, path: str) -> str:
    """Returns file, line, source and reason of a file which is not Python."""
    if isinstance(error, SyntaxError) and error.filename:
        return _text(error)
    return f'  File "{path}"\n{_text(error)}'


def quote_error(error: BaseException, code: UserCode, files: Collection[str] = ()) -> str:
    """Returns an exception's text, the innermost line of the user's code, its causes, a remedy.

    The innermost line may be in the text only: that of a layer whose node failed in a graph, or of
    a function that the graph called. The remedy is on a separate line, if there is one that the
    error itself does not state.

    Args:
        error: the exception.
        code: the code that raised it.
        files: the paths of its modules.
    """
    text = _readable(error)
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame, line) for frame, line in walked if _is_users(frame, code)]
    named = [match for match in _FRAME.findall(_text(error)) if match[0] in files]
    if named:
        path, number, name = named[-1]
        if f'File "{path}", line {number},' not in text:
            text += _quote_line(path, int(number), f", in {name}")
    elif frames:
        frame, line = frames[-1]
        function = frame.f_code
        loader = frame.f_globals.get("__loader__")
        # Python's import errors contain the path of the unpacked file.
        if isinstance(error, ImportError) and isinstance(loader, BundleLoader):
            text = loader.as_users(text)
        where = f", in {function.co_name}"
        text += _quote_line(function.co_filename, line, where, frame.f_globals)
    for cause in itertools.islice(_causes(error), _MOST_CAUSES):
        text += f"\nCaused by {_readable(cause)}"
    remedy = hint(error, code)
    return f"{text}\n{remedy}" if remedy else text


def quote_function(function: Callable[..., Any]) -> str:
    """Returns the definition of a function, "" if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _quote_line(code.co_filename, code.co_firstlineno) if code else ""


NO_EVAL_MODELS = (
    "TensorFlow Model Analysis has no EvalSavedModels any more; the Evaluator scores the serving "
    "model: leave the call out. A module with trainer_fn needs no run_fn: take run_fn away, and "
    "the model is published without them."
)


def explain_missing(function: str, path: str, names: Collection[str]) -> str:
    """Returns the message for a module at `path` that defines `names` and not `function`."""
    return (
        f"{path} does not define {function!r}{did_you_mean(function, names)}, the function that "
        f"trains: expected `def {function}(fn_args)` at the top level of the module."
    )


def hint(error: BaseException, code: UserCode) -> str:
    """Returns a remedy for an error that does not state one itself; or ""."""
    if steps := _missing_steps(error, code):
        option = steps.replace("_", "-")
        return (
            f"fn_args.{steps} is None if nothing sets it. In a component, set num_steps; for "
            f"`generic-trainer run`, give --{option}, or first make an endless dataset of the "
            "split by fn_args.data_accessor.tf_dataset_factory, whose batches are counted."
        )
    if isinstance(error, SystemExit):
        return (
            "sys.exit fails the run with any status, also after an export: return from the "
            "function instead."
        )
    if "." not in code.module and _is_relative_import(error):
        return (
            "A module file is imported by its own name, outside of any package: write "
            '"import helper" instead of "from . import helper", or pass '
            'run_fn="package.module.run_fn" instead of module_file.'
        )
    # `tf.estimator`, `tf.compat.v1.estimator` and `tf.keras.estimator` fail alike.
    if _OF_TENSORFLOW_1.fullmatch(_missing_name(error)):
        return (
            'Write "from generic_trainer.estimator import tf" instead of "import tensorflow as tf"'
            '; for tensorflow.compat.v1 and tf.contrib the same line with "import tf1 as tf".'
        )
    if name := _name_of_tensorflow_1(error):
        return (
            f"TensorFlow 2 has it as tf.compat.v1.{name}. A module of TensorFlow 1 gets all of its "
            'names by "from generic_trainer.estimator import tf1 as tf" instead of '
            '"import tensorflow as tf".'
        )
    if isinstance(error, AttributeError) and _is_dimension_value(error):
        return (
            "Only in TensorFlow 1 does a dimension of a shape have .value. In the functions of an "
            'estimator it has, with "from generic_trainer.estimator import tf1 as tf" instead of '
            '"import tensorflow as tf".'
        )
    if isinstance(error, ValueError) and (remedy := _hint_at_saving(str(error))):
        return remedy
    # An InvalidArgumentError of an assertion, whose own advice shifts the classes of labels.
    if _NOT_IN_VOCABULARY.search(str(error)):
        return (
            "A value is not in the vocabulary of this lookup, such as a label that only eval rows "
            "have: correct that row, or add the value to the vocabulary. num_oov_indices=1 would "
            "shift all indices, and so the classes of labels, by one."
        )
    # TensorFlow has no class of errors for this, nor a field.
    if isinstance(error, (RuntimeError, ValueError)) and _NEEDS_GRAPH.search(str(error)):
        return IN_A_GRAPH
    missing_in = _module_that_lacks(error)
    if missing_in == "tensorflow_model_analysis" and getattr(error, "name", "") == "export":
        return NO_EVAL_MODELS
    name = top_level(code.module)
    if code.bundle and missing_in == name and (installed := installed_at(name)):
        return f"The module hides an installed one of the same name ({installed}); rename it."
    if isinstance(error, ModuleNotFoundError):
        return _hint_at_missing_module(error.name or "", code)
    if UNPACKED_PREFIX in _missing_file(error):
        return (
            "A data file travels with the code only inside a package that the module imports, and "
            "under a name without a dot in front: put it there and open it relative to the "
            "package's __file__, or pass it as an input."
        )
    return ""


def _hint_at_saving(message: str) -> str:
    """Returns a remedy for errors of Keras 3 whose own advice leads to a model TFX cannot use."""
    # Keras raises a plain ValueError, so there is only its message to recognize it by.
    unchanged = "A module for the tf.keras of Keras 2 runs as it is with TF_USE_LEGACY_KERAS=1."
    if any(refusal in message for refusal in _REFUSALS_TO_SAVE):
        return (
            "In a pipeline, export a SavedModel: generic_trainer.training.export_model(model, "
            f"fn_args), or model.export(fn_args.serving_model_dir). {unchanged}"
        )
    if "File format not supported" in message and "Keras 3 only supports" in message:
        return (
            "To start from the weights of a model that export_model has published, build the same "
            "model, and base = tf.saved_model.load(fn_args.base_model); model.set_weights("
            f"[weight.numpy() for weight in base.model_weights]). {unchanged}"
        )
    return ""


def _name_of_tensorflow_1(error: BaseException) -> str:
    """Returns the dotted name in TensorFlow 1 of an attribute that TensorFlow 2 lacks; or ""."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType):
        return ""
    library, *path = [part for part in error.obj.__name__.split(".") if part not in _API_PARTS]
    if library != "tensorflow":
        return ""
    name = ".".join([*path, str(error.name)])
    try:
        pkgutil.resolve_name(f"tensorflow:compat.v1.{name}")
    except (AttributeError, ImportError):
        return ""
    return name


def _is_dimension_value(error: AttributeError) -> bool:
    """Whether an error is that of `.value` of a dimension, which may be unknown."""
    if error.name != "value" or error.obj is not None:
        return error.name == "value" and type(error.obj) is int
    frame, line = _place_of(error)
    if frame is None:
        return False
    source = _source(frame, line)
    # The loop over a shape may be in other lines of the function than the use of its dimensions.
    code = frame.f_code
    lines = linecache.getlines(code.co_filename, frame.f_globals)[
        code.co_firstlineno - 1 : line + 1
    ]
    names = _VALUE_OF.findall(source)
    loops = [loop for name, loop in _LOOP.findall("".join(lines)) if name in names]
    return any(map(_DIMENSION.search, (source, *loops)))


def _is_relative_import(error: BaseException) -> bool:
    """Whether an error comes from the very line of a relative import.

    Of the import system's ImportErrors, only this one does not name a module.
    """
    if not isinstance(error, ImportError) or error.name is not None:
        return False
    frame, line = _place_of(error)
    return frame is not None and _RELATIVE_IMPORT.search(_source(frame, line)) is not None


def _missing_steps(error: BaseException, code: UserCode) -> str:
    """Returns the steps of `fn_args` that the user's line uses although they are None; or ""."""
    # Python's error has no field for the operand, so its message and the line have to do.
    if not isinstance(error, TypeError) or not _OF_NONE.search(str(error)):
        return ""
    walked = traceback.walk_tb(error.__traceback__)
    *_, (frame, line) = [(None, 0), *(place for place in walked if _is_users(place[0], code))]
    if frame is not None and (match := _STEPS.search(_source(frame, line))):
        for value in frame.f_locals.values():
            with contextlib.suppress(Exception):  # a property of any object
                if getattr(value, match[1], 0) is None:
                    return match[1]
    return ""


def _place_of(error: BaseException) -> tuple[FrameType | None, int]:
    """Returns the frame and the line that raised an error; None if it was not raised."""
    *_, place = [(None, 0), *traceback.walk_tb(error.__traceback__)]
    return place


def _source(frame: FrameType, line: int) -> str:
    return linecache.getline(frame.f_code.co_filename, line, frame.f_globals)


def _module_that_lacks(error: BaseException) -> str | None:
    """Returns the module that lacks an attribute, a name or a submodule."""
    if isinstance(error, ModuleNotFoundError):
        return top_level(error.name or "")
    if isinstance(error, ImportError):
        return error.name
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__
    return None


def _missing_name(error: BaseException) -> str:
    """Returns the dotted name of a module, or of a name in one, that does not exist; or ""."""
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return f"{error.obj.__name__}.{error.name}"
    return ""


def _hint_at_missing_module(dotted: str, code: UserCode) -> str:
    name = top_level(dotted)
    if code.bundle and (name == top_level(code.module) or _is_unpacked(name)):
        return f"{name!r} was packed as it was found, and has no such module: check the spelling."
    if dotted != name and (installed := installed_at(name)):
        return (
            f"{name!r} is installed ({installed}) and has no module {dotted!r}: another version of "
            "it may, or it has another name here."
        )
    if name in OF_TFX:
        return (
            f"{name!r} comes with TFX: {TFX_EXTRA}. Without TFX, take TensorFlowDatasetOptions and "
            "load_schema from generic_trainer.data."
        )
    if name in ("determined", "pedl"):
        return (
            f"Replace {name!r} with generic_trainer.trials, which has its names; "
            "docs/coming-from-other-trainers.md lists the import lines."
        )
    return (
        f"If {name!r} is a package, install it where the trainer runs. If it lies beside the "
        "module file, import it by a constant name, so that it is packed; a folder of data alone "
        "needs an __init__.py."
    )


def _is_unpacked(name: str) -> bool:
    """Whether a loaded module comes from a bundle."""
    module = sys.modules.get(name)
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    return any(UNPACKED_PREFIX in path for path in paths)


def _missing_file(error: BaseException) -> str:
    """Returns a message with the path of a missing file; "" for other errors."""
    # TensorFlow's error has no field for the path, and libraries that raise Python's leave it out.
    # `UNPACKED_PREFIX` is unique enough to search the message for it.
    is_tensorflows = type(error).__name__ == "NotFoundError"
    return str(error) if is_tensorflows or isinstance(error, FileNotFoundError) else ""


def _readable(error: BaseException) -> str:
    """Returns the text of an error without colors, and without the stack of TensorFlow's errors.

    Of a long text the beginning and the end remain.
    """
    text = without_colors(_text(error))
    node = ""
    message = str(error)
    theirs = getattr(sys.modules.get("tensorflow"), "errors", None)
    is_of_graph = theirs is not None and isinstance(error, theirs.OpError)
    if is_of_graph and (match := _NODE.search(message)):
        node = f"\nNode: {match[1] or match[2]}"
    if is_of_graph or message.startswith("in user code:"):  # of AutoGraph, with frames of libraries
        text = f"{type(error).__name__}: " + "\n".join(own_lines(message))
    if len(text) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text + node


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields what an error was raised from, and the errors of a group, depth first."""
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    for cause in (error.__cause__, *(error.exceptions if isinstance(error, group) else ())):
        if cause is not None:
            yield cause
            yield from _causes(cause)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).rstrip()


def _is_users(frame: FrameType, code: UserCode) -> bool:
    if _AUTOGRAPH in frame.f_code.co_filename:
        return False
    if code.bundle is not None:
        return isinstance(frame.f_globals.get("__loader__"), BundleLoader)
    return top_level(str(frame.f_globals.get("__name__", ""))) == top_level(code.module)


def _quote_line(
    path: str, line: int, where: str = "", variables: dict[str, Any] | None = None
) -> str:
    source = linecache.getline(path, line, variables).strip()
    return f'\n  File "{path}", line {line}{where}' + (f"\n    {source}" if source else "")
