"""Whether a gzip file was read to its real end.

A gzip file that is cut off between two records reads as a shorter file without an error. Its last
four bytes tell: they are the length of what it holds (RFC 1952, section 2.3.1, ISIZE).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import tensorflow as tf

from generic_trainer._core.records import RecordFile
from generic_trainer.errors import DataError

__all__ = ["FRAME_BYTES", "check_whole"]

# Length, its checksum, and the checksum of the record.
FRAME_BYTES = 8 + 4 + 4

_ISIZE_BYTES = 4
_PIECE_BYTES = 1 << 20
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


def check_whole(files: Sequence[RecordFile], read_bytes: Sequence[int]) -> None:
    """Raises where a gzip file ends before its stream does.

    Args:
        files: what was read.
        read_bytes: length of all records of each file, with their frames.

    Raises:
        DataError: files are cut off; the message names all of them.
    """
    cut_off = [
        file.path
        for file, found in zip(files, read_bytes, strict=True)
        if file.compression == "GZIP" and file.size and _is_cut_off(file, found)
    ]
    if cut_off:
        raise DataError(
            f"{', '.join(cut_off)}: cannot be read to the end. Expected a whole GZIP TFRecord "
            "file, found one that is cut off. Write the file again, or take it out of the split."
        )


def _is_cut_off(file: RecordFile, found: int) -> bool:
    with tf.io.gfile.GFile(file.path, "rb") as stream:
        stream.seek(max(0, file.size - _ISIZE_BYTES))
        end = stream.read(_ISIZE_BYTES)
        if end == struct.pack("<I", found % 2**32):
            return False
        # Other lengths are right where several gzip streams make one file: look at all of it.
        stream.seek(0)
        return not _ends_with_its_stream(stream)


def _ends_with_its_stream(stream: tf.io.gfile.GFile) -> bool:
    inflater = zlib.decompressobj(_GZIP_FORMAT)
    while piece := stream.read(_PIECE_BYTES):
        while piece:
            if inflater.eof:
                inflater = zlib.decompressobj(_GZIP_FORMAT)
            inflater.decompress(piece)
            piece = inflater.unused_data
    return inflater.eof
