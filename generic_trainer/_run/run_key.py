"""The run key: a digest of the inputs of a run's result, which names its checkpoint directory."""

import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from generic_trainer._core.files import files_below, fingerprint_of_file, gfile, is_remote
from generic_trainer._core.keras import LEGACY_VARIABLE, legacy_setting
from generic_trainer._core.texts import record_has_module
from generic_trainer._core.values import digest
from generic_trainer.errors import DataError, ModuleFileError
from generic_trainer.launchers import TrainingRequest
from generic_trainer.user_code import digest_of_imports, imported_packages

# Packages that decide a result although a module may not import them by name.
_ALWAYS = {"keras", "numpy", "tensorflow", "tf_keras"}
# Schemes of file systems, for which TensorFlow may lack the code.
_STORES = {"abfs", "abfss", "az", "gs", "hdfs", "s3", "viewfs"}


def parts_of_run_key(request: TrainingRequest, env: Mapping[str, str]) -> dict[str, str]:
    """Returns the inputs of a run's result, of which the run key is the digest.

    They are the fields that `TrainingRequest` declares as `InRunKey`.

    The paths of the inputs are not part of them: an upstream component that ran again and produced
    the same files has changed nothing, unless a file has more than 4 MiB; see
    `fingerprint_of_file`.

    Args:
        request: the run.
        env: `Distribution.env`, which `run_fn` may read.

    Returns:
        Name of the part → its digest, or its value if that is short.

    Raises:
        DataError: an input cannot be read.
    """
    code = request.user_code
    data = request.examples_format
    inputs = {
        "train_files": request.train_files,
        "eval_files": request.eval_files,
        "data_view": (data.data_view_uri,),
        "schema": (request.schema_path,),
        "transform_graph": (request.transform_graph_path,),
        "base_model": (request.base_model,),
    }
    return {
        "code": code.digest or "not bundled",
        "imported_code": _imported_code(request),
        "run_fn": f"{code.module}.{code.function}",
        "examples_format": str(data.payload_format),
        "hyperparameters": digest(request.hyperparameters),
        "custom_config": digest(request.custom_config),
        "train_steps": str(request.train_steps),
        "eval_steps": str(request.eval_steps),
        "num_examples": digest(request.num_examples),  # many modules make steps of them
        "env": digest(dict(env)),
        LEGACY_VARIABLE: legacy_setting(env),  # which of the packages tf.keras is
        "packages": ", ".join(sorted(_versions(request))),
        **{name: _files_digest([*filter(None, paths)]) for name, paths in inputs.items()},
        **{f"extra_inputs[{name}]": _extra(uris) for name, uris in request.extra_inputs.items()},
    }


def _imported_code(request: TrainingRequest) -> str:
    """Returns a digest of the Python files that the user's code imports and that have no version.

    They lie in a folder of `PYTHONPATH`, the working directory or an editable install.
    """
    try:
        return digest_of_imports(request.user_code)
    except ModuleFileError:  # as for `_versions`
        return "unknown"


def _versions(request: TrainingRequest) -> Iterator[str]:
    """Yields "name version" of TensorFlow, Keras and the packages that the user's code imports.

    Another release of these may train another model. Packages that only other packages import do
    not count: upgrading an unrelated tool would discard the checkpoints of every node.
    """
    try:
        names = imported_packages(request.user_code)
    except ModuleFileError:  # the bundle of a run that packed it for itself, and has ended
        names = set()
    modules = sorted((names | _ALWAYS) - sys.stdlib_module_names - {"generic_trainer"})
    unknown = set()  # of distributions with another name, such as scikit-learn
    for name in modules:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            unknown.add(name)
    for distribution in importlib.metadata.distributions() if unknown else ():
        record = distribution.read_text("RECORD") or ""
        if any(record_has_module(record, name) for name in unknown):
            yield f"{distribution.metadata['Name']} {distribution.version}"


def _extra(uris: Sequence[str]) -> str:
    names = [*filter(_is_name, uris)]
    return _files_digest([uri for uri in uris if uri not in names], names)


def _files_digest(paths: Sequence[str], names: Sequence[str] = ()) -> str:
    """Returns a digest of the files that patterns match or directories hold, and of names.

    File names are relative to the directory: the same files elsewhere have the same digest.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        files = [[name, *fingerprint_of_file(path)] for name, path in _files(paths)]
    except Exception as error:  # the class depends on the file system
        raise DataError(
            f"Cannot compare {', '.join(paths)} with the inputs of an earlier run: {error}",
            path=paths[0],
        ) from error
    return digest([*files, *names])


def _files(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for pattern in paths:
        # The name of an input may look like a pattern: "base[1]".
        for path in [pattern] if gfile().exists(pattern) else sorted(gfile().glob(pattern)):
            if gfile().isdir(path):
                yield from ((name, os.path.join(path, name)) for name in files_below(path))
            else:
                yield os.path.basename(path), path


def _is_name(uri: str) -> bool:
    """Whether a URI is no path: projects/1/models/2, bq://project.table or https://example.org."""
    import tensorflow as tf

    if os.path.isabs(uri) or uri.partition(":")[0] in _STORES:
        return False
    try:
        return not (gfile().exists(uri) or gfile().glob(uri) or is_remote(uri))
    except tf.errors.UnimplementedError:  # the scheme is none of a file system
        return True
    except Exception:  # which the digest of the files reports
        return False
