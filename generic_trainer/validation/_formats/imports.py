"""Globals that a pickle or a Keras file imports: harmless, unknown, or a way to run anything.

modelscan and picklescan keep lists of what is dangerous, and everything else passes. Here the list
is of what is data; of Python's own modules any other function is refused, and code of libraries
that nobody here knows is told of.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Literal

Verdict = Literal["allowed", "unknown", "refused"]

_HARMLESS = re.compile(
    r"builtins\.(object|int|float|bool|str|bytes|bytearray|complex|list|tuple|dict|set|frozenset|"
    r"slice|range|type|Ellipsis|NotImplemented|abs|len|max|min|print|round|sorted|sum|[A-Z]\w*)|"
    r"collections\.(ChainMap|Counter|OrderedDict|UserDict|defaultdict|deque)|functools\.partial|"
    r"_codecs\.encode|copyreg\.(_reconstructor|__newobj__|__newobj_ex__)|operator\.itemgetter|"
    r"re\._compile|array\.(array|_array_reconstructor)|io\.(Bytes|String)IO|logging\.getLogger|"
    r"types\.SimpleNamespace|_loss\.\w+|"  # a module of scikit-learn, under the name that it has
    r"zoneinfo\.ZoneInfo\._unpickle|"
    r"(datetime|decimal|enum|fractions|math|pathlib|pathlib\._local|random|statistics|uuid)\.\w+"
)
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # Python 2
# Making an object of these does something already.
_DANGEROUS_MODULES = re.compile(
    r"(nt|posix|os|sys|subprocess|socket|shutil|pty|runpy|importlib|code|codeop|ctypes|_ctypes|"
    r"webbrowser|asyncio|multiprocessing|pdb|bdb|pip|ensurepip|http|urllib|urllib2|httplib|ftplib|"
    r"smtplib|telnetlib|poplib|xmlrpc|requests|aiohttp|httpx|paramiko|fabric|IPython|_pickle|"
    r"_posixsubprocess|_winapi|commands|torch\.hub|numpy\.(testing|f2py|distutils|ctypeslib))(\.|$)"
)
# What pickles of estimators are made of.
_LIBRARIES = re.compile(
    r"numpy|scipy|sklearn|joblib|pandas|xgboost|lightgbm|catboost|imblearn|statsmodels|torch"
)
# Functions in them that read files, or run what they are given.
_DANGEROUS_FUNCTION = re.compile(
    r"(?i)(^|_)(load\w*|read\w*|open\w*|eval\w*|exec\w*|run\w*|system|compile\w*|import\w*|from_?file|"
    r"memmap|save\w*|query|p?open|spawn\w*|fork\w*|check_(call|output)|getoutput|rmtree|remove|"
    r"unlink|url\w+|fetch\w*|download\w*|inline|source|to_pickle)$"
)


def verdict(module: str, name: str, allowed: Collection[str] = ()) -> Verdict:
    """Returns what is known of a global.

    Args:
        module: that it is imported from.
        name: in the module; with dots for an attribute of an attribute.
        allowed: modules, or `module.name`s, that the contract allows.
    """
    module = _RENAMED.get(module, module)
    full = f"{module}.{name}"
    if any(full == each or f"{full}.".startswith(f"{each}.") for each in allowed):
        return "allowed"
    if _HARMLESS.fullmatch(full):
        return "allowed"
    package = module.partition(".")[0]
    *owners, last = name.split(".")
    is_library = _LIBRARIES.fullmatch(package) is not None
    is_class = last.lstrip("_")[:1].isupper()
    # Through a module to what that imports: `numpy` and `os.system`.
    is_detour = any(not owner.lstrip("_")[:1].isupper() for owner in owners)
    is_special = any(owner.startswith("__") for owner in owners) or (
        last.startswith("__") and not (is_library or last.startswith("__pyx_unpickle_"))
    )
    if _DANGEROUS_MODULES.match(f"{module}.") or is_detour or is_special:
        return "refused"
    if package in sys.stdlib_module_names:
        return "unknown" if is_class and not owners and package != "builtins" else "refused"
    if is_library and not owners:
        return "refused" if not is_class and _DANGEROUS_FUNCTION.search(last) else "allowed"
    return "unknown"
