"""The variables in a model's checkpoint: unreadable ones, and those with NaN or infinities."""

import dataclasses
from pathlib import Path

import numpy as np

from generic_trainer._core.texts import reason_of

_CHUNK = 1 << 22  # values that are examined together: one variable may fill the memory


@dataclasses.dataclass
class Variables:
    """Findings of reading every tensor of a checkpoint.

    Attributes:
        unreadable: name → reason.
        nan: names of float variables with a NaN.
        infinite: names of float variables with an infinity and without NaN.
    """

    unreadable: dict[str, str] = dataclasses.field(default_factory=dict)
    nan: list[str] = dataclasses.field(default_factory=list)
    infinite: list[str] = dataclasses.field(default_factory=list)


def read_variables(prefix: Path) -> Variables:
    """Reads every tensor of a checkpoint; TensorFlow verifies their checksums.

    Raises:
        Exception: the checkpoint has no readable index.
    """
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    found = Variables()
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        try:
            value = reader.get_tensor(name)
        except Exception as error:
            found.unreadable[name] = reason_of(error)
            continue
        if dtype.is_floating or dtype.is_complex:
            flat = np.asarray(value).reshape(-1)
            pieces = [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
            if odd := [piece for piece in pieces if not np.isfinite(piece).all()]:
                has_nan = any(np.isnan(piece).any() for piece in odd)
                (found.nan if has_nan else found.infinite).append(name)
    return found
