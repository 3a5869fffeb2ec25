"""User code: packed on the orchestrator's machine, loaded and called on the worker's.

::

    from generic_trainer.user_code import bundle_module_file, call_user_function, user_function

    code = bundle_module_file("penguin/trainer.py", "gs://bucket/pipeline_root/_bundles")
    # UserCode("trainer", "run_fn", bundle="gs://…/trainer-4be1….zip", digest="4be1…")

    with user_function(code) as run_fn:  # any machine, any number of times
        call_user_function(run_fn, fn_args, code)

A bundle is a zip of exactly the files that the module imports from its own folder. Syntax trees
show them, including imports inside functions and constant `importlib.import_module` calls:

1. A sibling module is taken as one file, and its own imports are followed.
2. A sibling package, with or without `__init__.py`, is taken whole: sub-packages, tests and data
   files, without `__pycache__`, `*.pyc` and hidden files. A folder without `__init__.py` counts
   only if it has Python files and no installed package has its name.
3. The standard library, installed packages and files that are not imported are not taken.
4. The digest is over names and contents: it changes if a helper is edited, but not if an unrelated
   neighbour is. It does not depend on the folder's location or on time stamps.

Packing reports syntax errors and a function that is certainly undefined, before a pipeline runs.

While `user_function` is open the bundle's modules are importable, lazily and in child processes,
under their names beside the module file. Three rules decide which code a name means:

1. The bundle comes before the script's folder, the working directory and `PYTHONPATH`: the packed
   and hashed code runs.
2. A sibling gives way, with a warning, to an installed package or standard library module of the
   same name, as it does in TFX, which puts its wheel last on `sys.path`.
3. The module file itself never gives way.

One user module is open at a time in a process, because `sys.path` and `sys.modules` belong to the
whole process: a second thread waits, the same thread may nest. Tracebacks, debuggers and error
messages show the path of the user's own file, not of the unpacked one.
"""

from generic_trainer.user_code._archive import UserCode

# For trainer APIs, which look for the user's own modules.
from generic_trainer.user_code._archive import installed_at as installed_at
from generic_trainer.user_code._archive import lies_in_environment as lies_in_environment

# For launchers, which send it to other machines.
from generic_trainer.user_code._archive import read_bundle as read_bundle
from generic_trainer.user_code._bundle import bundle_function, bundle_module_file
from generic_trainer.user_code._collect import defines_function, imported_packages
from generic_trainer.user_code._elsewhere import digest_of_imports
from generic_trainer.user_code._errors import explain_missing
from generic_trainer.user_code._load import (
    call_user_function,
    checked_function,
    is_importing,
    loaded_modules,
    path_of_module,
    user_function,
    user_module,
)

__all__ = [
    "UserCode",
    "bundle_function",
    "bundle_module_file",
    "call_user_function",
    "checked_function",
    "defines_function",
    "digest_of_imports",
    "explain_missing",
    "imported_packages",
    "is_importing",
    "loaded_modules",
    "path_of_module",
    "user_function",
    "user_module",
]
