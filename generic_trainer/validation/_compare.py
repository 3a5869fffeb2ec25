"""Are two outputs the same, up to rounding?"""

from __future__ import annotations

import numpy as np

__all__ = ["difference", "is_float"]

# Relative tolerance per dtype: sums are taken in another order at another batch size.
_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_FEW = 0.05  # share of discrete values that may flip where two scores are nearly equal


def is_float(array: np.ndarray) -> bool:
    """Whether the array has floating point numbers, bfloat16 included."""
    return array.dtype.kind in "fc" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def difference(found: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    """Compares two arrays of the same meaning.

    Returns:
        What differs, in words, empty for nothing; and whether it is more than a doubt.
    """
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}", _more_than_padding(
            found, expected
        )
    if not is_float(found):
        return _discrete(found, expected)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    tolerance = _TOLERANCE.get(found.dtype.itemsize, 2e-2)
    close = np.isclose(a, b, rtol=tolerance, atol=tolerance * min(scale, 1.0), equal_nan=True)
    if close.all():
        return "", False
    worst = int(np.argmax(np.where(close, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))))
    return f"{a.flat[worst]:.6g} instead of {b.flat[worst]:.6g}", True


def _discrete(found: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    different = np.asarray(found != expected)
    share = float(different.mean()) if different.size else 0.0
    if not share:
        return "", False
    where = int(np.argmax(different))
    return f"{found.flat[where]!r} instead of {expected.flat[where]!r}", share > _FEW


def _more_than_padding(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether different shapes are an error: rows padded to the longest of a batch are not."""
    return found.ndim != expected.ndim or found.shape[:1] != expected.shape[:1]
