"""One pass over the variables' files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["VariableScan", "scan"]

_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class VariableScan:
    """What came out of reading every variable.

    Attributes:
        count: how many were read.
        unreadable: name → why it could not be read.
        nan: float variables with a NaN.
        infinite: float variables with an infinity and no NaN.
    """

    count: int
    unreadable: dict[str, str]
    nan: tuple[str, ...]
    infinite: tuple[str, ...]


def scan(prefix: Path) -> VariableScan:
    """Reads every tensor of the checkpoint at `prefix`; TensorFlow verifies their checksums.

    Args:
        prefix: the files' common start, `<model>/variables/variables`.

    Raises:
        Exception: TensorFlow's own, when not even the index can be read.
    """
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    unreadable: dict[str, str] = {}
    kinds: dict[str, set[str]] = {"nan": set(), "infinite": set()}
    names = sorted(reader.get_variable_to_shape_map())
    for name in names:
        try:
            value = reader.get_tensor(name)
        except Exception as error:
            unreadable[name] = (str(error).strip().splitlines() or [""])[0]
            continue
        kind = _flaw(np.asarray(value))
        if kind:
            kinds[kind].add(name)
    nan, infinite = (tuple(sorted(kinds[kind])) for kind in ("nan", "infinite"))
    return VariableScan(len(names), unreadable, nan, infinite)


def _flaw(value: object) -> str:
    """Returns "nan", "infinite" or nothing; works in pieces, as a variable may fill the memory."""
    import numpy as np
    import tensorflow as tf

    array = np.asarray(value)
    if array.dtype.kind not in "fc" and tf.as_dtype(array.dtype).is_floating is False:
        return ""
    found = ""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = flat[start : start + _CHUNK]
        if not np.isfinite(piece).all():
            if np.isnan(piece).any():
                return "nan"
            found = "infinite"
    return found
