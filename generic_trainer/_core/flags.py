"""Flags of absl: the process has one table of them, which importing a module fills."""

import sys
from collections.abc import Collection
from typing import Any

Defined = list[tuple[str, Any]]  # the module that has defined a flag, and the flag


def forget_flags(modules: Collection[str]) -> Defined:
    """Deletes the flags that modules have defined, and returns them.

    absl ignores the definitions of a module that is imported again, with their defaults, as long as
    it has those of the first import.
    """
    if "absl.flags" not in sys.modules:
        return []
    table = sys.modules["absl.flags"].FLAGS
    owners = table.flags_by_module_dict()
    found = [
        (name, flag)
        for name in modules
        for flag in owners.get(name, ())
        # Those of a second import, which absl has ignored, are listed as well.
        if flag.name in table and table[flag.name] is flag
    ]
    for _, flag in found:
        delattr(table, flag.name)
        if flag.short_name in table:
            delattr(table, flag.short_name)
    return found


def define_again(flags: Defined) -> None:
    """Brings back flags that `forget_flags` has deleted, of modules that are imported."""
    for module, flag in flags:
        table = sys.modules["absl.flags"].FLAGS
        table[flag.name] = flag
        table.register_flag_by_module(module, flag)
        table.register_flag_by_module_id(id(sys.modules.get(module)), flag)
