"""Writes the table of the ops that each release of TensorFlow has, from the released wheels.

::

    python scripts/op_registries.py --dumps DIR

For each minor release, `uv` installs the newest patch of tensorflow-cpu into a new environment,
which prints its registry and is deleted. Registries are kept in DIR; those that are there already
are not made again. The table, `generic_trainer/validation/op_registries.tsv`, has only what changed
after the first release; `generic_trainer/validation/_op_registries.py` reads it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "generic_trainer" / "validation" / "op_registries.tsv"
REFERENCE = 100  # what references to variables of TensorFlow 1 add to the number of a dtype
MINORS = range(8, 22)  # of TensorFlow 2: all have a wheel for Python 3.10
# Attributes without which a node gives another result. Without the others, it gives the same one.
CHANGE_RESULTS = ("bad_indices_policy", "resize_if_index_out_of_bounds", "rounds")
# Printed as JSON: type → values that are allowed, the attributes without a default, and so on.
DUMP = """
import json, sys
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.python.client import pywrap_tf_session
listed = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
newest = getattr(xla, "call_module_maximum_supported_version", lambda: None)()
def allowed(attribute):
    values = attribute.allowed_values.list
    return [types_pb2.DataType.Name(each) for each in values.type] + [s.decode() for s in values.s]
json.dump({
    "release": tf.__version__, "xla_call_module": newest,
    "dtypes": dict(types_pb2.DataType.items()),
    "ops": {
        op.name: {
            a.name: {"required": not a.HasField("default_value"), "type": a.type,
                     "allowed": sorted(allowed(a))}
            for a in op.attr
        }
        for op in op_def_pb2.OpList.FromString(listed).op
    },
}, open(sys.argv[1], "w"))
"""


def main() -> None:
    """Makes the registries that are missing, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dumps", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    options.dumps.mkdir(parents=True, exist_ok=True)
    registries = [registry(minor, options.dumps / f"2.{minor}.json") for minor in MINORS]
    dtypes = registries[-1]["dtypes"].items()
    lines = [
        "\t".join(each["release"] for each in registries),
        "\t".join(f"{number} {name}" for name, number in dtypes if 0 < number < REFERENCE),
    ]
    for old, new in itertools.pairwise(registries):
        release = ".".join(new["release"].split(".")[:2])
        before, after = facts(old, new), facts(new, old)
        lines += [f"{release}\t-\t{fact}" for fact in sorted(before - after)]
        lines += [f"{release}\t+\t{fact}" for fact in sorted(after - before)]
    TABLE.write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{TABLE}: {len(lines) - 2} changes, {TABLE.stat().st_size:,} bytes")


def registry(minor: int, file: Path) -> Any:
    """Returns the registry of a release, of a new environment unless a file has it."""
    if not file.exists():
        print(f"TensorFlow 2.{minor} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            python = f"{folder}/environment/bin/python"
            wanted = [f"tensorflow-cpu==2.{minor}.*", "numpy<2", "setuptools<70"]
            wanted += ["protobuf<3.20"] if minor < 12 else []
            install = ["uv", "pip", "install", "-q", "--python", python, *wanted]
            environment = {**os.environ, "UV_CACHE_DIR": f"{folder}/cache"}
            base = os.path.realpath(sys.executable)
            for command in (
                ["uv", "venv", "-q", "--python", base, f"{folder}/environment"],
                install,
                [python, "-c", DUMP, str(file)],
            ):
                subprocess.run(command, check=True, env=environment)
    return json.loads(file.read_text())


def facts(one: Any, other: Any) -> set[str]:
    """Returns the facts of a release that it may have before another one or lose after it.

    They are `Op`, `Op.attribute=value`, `Op.attribute?` (a node may lack it), `Op.attribute` of an
    attribute that is a dtype or changes the result, `Op.attribute~` of any other, and `=dtype`.
    TensorFlow ignores attributes that it does not know. Attributes of an op that only one of the
    two has are left out.
    """
    found = {f"={dtype}" for dtype in one["dtypes"] if not dtype.endswith("_REF")}
    for op, attributes in one["ops"].items():
        if op.startswith("_"):  # TensorFlow makes them while it runs a graph
            continue
        found.add(op)
        if op in other["ops"]:
            found.update(_of_op(op, attributes, other["ops"][op]))
    if one["xla_call_module"] is not None and other["xla_call_module"] is not None:
        numbers = range(1, one["xla_call_module"] + 1)
        found.update(f"XlaCallModule.version={number}" for number in numbers)
    return found


def _of_op(op: str, attributes: Any, others: Any) -> Iterator[str]:
    for name in attributes.keys() | others.keys():
        attribute, other = attributes.get(name), others.get(name)
        if attribute and name != "debug_name":  # only for messages
            is_needed = "type" in attribute["type"] or name in CHANGE_RESULTS
            yield f"{op}.{name}{'' if is_needed else '~'}"
        if attribute is None or not attribute["required"]:
            yield f"{op}.{name}?"
        if attribute and other:
            # Without a list, all values are allowed: all those that the other release lists.
            values = attribute["allowed"] or other["allowed"]
            yield from (f"{op}.{name}={value}" for value in values)


if __name__ == "__main__":
    main()
