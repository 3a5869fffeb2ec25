"""Changes to bytes, texts and plain values, as damage, haste and malice make them.

Each function takes what is good and a source of chance, and returns what may be bad.
"""

from __future__ import annotations

import copy
import random
import string
import struct
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

__all__ = ["change_bytes", "change_records", "change_text", "change_value", "change_zip"]

# Each letter is nine times the one before: 9**9 values.
_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{letter}: &{letter} [{','.join(['*' + before] * 9)}]\n"
    for before, letter in zip("abcdefgh", "bcdefghi", strict=True)
)
_TOKENS = (
    "NaN", "-Infinity", ".inf", ".nan", "1e400", "-1", "0", "0x10", "1e-4", "true", "null", "~",
    "[]", "{}", '""', "'", '"', "{", "}", "[", "]", ":", ": ", "- ", ",", "#", "%", "@", "`", "|",
    "&a [*a]", "*nothing", "<<: *a", "!!python/object/apply:os.getcwd []", "!!timestamp x",
    "!!binary #", "!!set {a, b}", "2020-13-45", "2020-01-01", "12:34:56", "\\u0000", "\\ud800",
    "\x00", "\ufeff", "\u2028", "\U0001f40d", "\r", "\t", "--- x", "...", "? {a: 1}\n: 2",
    "9" * 25, "9" * 5000, "[" * 2000, "{" * 300, "(" * 300, "-" * 3000, "x" * 5000, _BOMB,
    "import os\n", "lambda: ", "f'{", "\\", "class", "*", "**", "async ", "return",
    "size: 100000000000", "feature { }", "type: 77", "<", ">",
)  # fmt: skip
_WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 5, 2.0, 1.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400,
    float("nan"), float("inf"), 1e-320, "", "x", "\0", "warn", "5", "NaN", "true", "x" * 5000,
    "../..", "/", "/dev/null", "2020-01-01", [], [[]], [None], [1, "a"], ["x"] * 300, {}, {"a": 1},
    {"": None},
    {"base64": "#"}, {"base64": 5}, {"base64": "AAAA"}, {"proto_text": "x {"}, {"proto_text": 5},
    {"name": 5}, {"__type__": "pickle", "value": "gASVAA=="}, {"type": "int"}, {"type": ["int"]},
    {"type": "log", "minval": 1, "maxval": 9999}, {"type": "int", "minval": 0, "maxval": 10**12},
)  # fmt: skip


def change_bytes(content: bytes, dice: random.Random) -> bytes:
    """Flips, overwrites, removes, inserts, repeats or cuts, one to three times."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        start = dice.randrange(len(changed) + 1)
        end = start + dice.choice((1, 2, 4, 8, 64))
        kind = dice.randrange(7)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << dice.randrange(8)
        elif kind == 1:
            changed[start:end] = dice.randbytes(min(end, len(changed)) - start)
        elif kind == 2:
            del changed[start:end]
        elif kind == 3:
            changed[start:start] = dice.randbytes(end - start)
        elif kind == 4:
            changed[start:start] = changed[start:end] * dice.choice((1, 3, 100))
        elif kind == 5:
            del changed[start:]
        else:
            changed[start:end] = dice.choice((b"\0", b"\xff")) * (end - start)
    return bytes(changed)


def change_text(text: str, dice: random.Random) -> str:
    """Puts something in, takes a line or a character out, or swaps two lines."""
    kind = dice.randrange(4)
    if kind == 0:
        start = dice.randrange(len(text) + 1)
        return text[:start] + dice.choice(_TOKENS) + text[start + dice.choice((0, 0, 1, 5)) :]
    if kind == 1:
        start = dice.randrange(len(text) + 1)
        return text[:start] + dice.choice(string.printable) + text[start + 1 :]
    lines = text.splitlines(keepends=True)
    first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
    if kind == 2:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines[first : first + 1] = dice.choice(([], [lines[first]] * 2, [_BOMB, lines[first]]))
    return "".join(lines)


def change_value(value: Any, dice: random.Random) -> Any:
    """Replaces, removes or misspells something inside of a plain value, or all of it."""
    changed = {"": copy.deepcopy(value)}
    places = list(_places(changed))
    parent, key = dice.choice(places[:1] * (dice.random() < 0.05) or places[1:] or places)
    kind = dice.randrange(6)
    if kind == 0 and isinstance(parent, dict) and parent is not changed:
        held = parent.pop(key)
        parent[_misspelt(str(key), dice)] = held
    elif kind == 1 and parent is not changed:
        del parent[key]
    elif kind == 2 and isinstance(parent, dict) and parent is not changed:
        parent[dice.choice(("x", "", "5", "name", "\0"))] = dice.choice(_WRONG)
    elif kind == 3:
        for _ in range(dice.choice((1, 2, 100))):
            parent[key] = dice.choice(([parent[key]], {"a": parent[key]}))
    else:
        parent[key] = copy.deepcopy(dice.choice(_WRONG))
    return changed[""]


def change_records(records: list[bytes], dice: random.Random) -> bytes:
    """Returns a TFRecord file with frames whose checksums are right and whose lengths may lie.

    TensorFlow allocates the memory for a length, and dies if that is more than there is.
    """
    frames = [_frame(len(record)) + record + _crc(record) for record in records]
    wrong = dice.randrange(len(frames) + 1)
    length = dice.choice((0, 1, 1 << 20))
    bad = dice.choice(
        (
            _frame(length) + dice.randbytes(dice.choice((0, 3, 100))),
            _frame(3) + b"abc" + _crc(b"abc"),
            _frame(0) + _crc(b""),
            _frame(3) + b"abc",
        )
    )
    return b"".join(frames[:wrong]) + bad + b"".join(frames[wrong:])


def change_zip(files: dict[str, bytes], dice: random.Random) -> bytes:
    """Returns a zip whose names, members, methods, sizes or flags may be wrong."""
    files = dict(files)
    name = dice.choice(list(files))
    kind = dice.randrange(8)
    bad = (
        "../" + name,
        "/" + name,
        name + "/x.py",
        name.partition("/")[0],
        "a" * 300,
        "",
        ".",
        "\\x",
    )
    if kind < 2:
        files[dice.choice(bad)] = files[name]
    elif kind == 2:
        files[name + "/"] = b""
    elif kind == 3:
        files["zeros"] = bytes(50 << 20)
    method = dice.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for each, content in files.items():
            archive.writestr(zipfile.ZipInfo(each), content, method)
        archive.comment = dice.choice((b"", b"{}", b"[]", b"{", b'{"folder": 5}', b"\xff"))
    packed = bytearray(buffer.getvalue())
    if kind > 3:  # a field of a header: flags, method, size
        head = packed.rindex(b"PK\x01\x02")
        field = dice.choice((6, 8, 10, 20, 24, 28, 42))
        packed[head + field : head + field + 2] = struct.pack("<H", dice.randrange(1 << 16))
    return change_bytes(bytes(packed), dice) if dice.random() < 0.5 else bytes(packed)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _misspelt(name: str, dice: random.Random) -> str:
    start = dice.randrange(len(name) + 1)
    changes: tuple[Callable[[], str], ...] = (
        lambda: name[:start] + name[start + 1 :],
        lambda: name[:start] + dice.choice(string.ascii_lowercase) + name[start:],
        lambda: name.upper(),
    )
    return dice.choice(changes)()


def _frame(length: int) -> bytes:
    head = struct.pack("<Q", length)
    return head + _crc(head)


def _crc(content: bytes) -> bytes:
    """Returns the checksum of TFRecords: CRC-32C (RFC 3720, appendix B.4), masked."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
