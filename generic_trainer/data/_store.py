"""Storage of columns: arrays that grow in memory or on disk, and become tensors at the end.

An array is an unnamed file: a `memfd` in memory, an unlinked file on disk. Either way it grows
without a second copy, the kernel frees it with its last user, even if the process is killed, and it
is mapped as a tensor that is never copied into a graph, however large. Strings that repeat are
stored as codes, and the distinct strings in a vocabulary.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.scratch import private_folder, unnamed_file
from generic_trainer.data._columns import CODE, ArraySpec
from generic_trainer.data._graph import eagerly

# Memory of a string in addition to its bytes while it is looked up: the object and its entry in a
# `dict` that has just grown. In a tensor it takes a sixth of that.
_ENTRY_BYTES = 160

# Graphs open the files of these whenever they run.
_read_by: weakref.WeakKeyDictionary[tf.Graph, list[Store]] = weakref.WeakKeyDictionary()


class Store:
    """The arrays of a dataset; they are freed with the last object or tensor that uses them.

    Attributes:
        in_memory: whether the arrays are in memory, otherwise on disk.
        vocabulary: the strings of the codes in the arrays; always in memory.
    """

    def __init__(
        self,
        specs: Sequence[ArraySpec],
        directory: str | None = None,
        vocabulary_limit_bytes: int = 0,
    ) -> None:
        """Opens one empty file for each array, in memory if the directory is None."""
        _allow_open_files(len(specs))
        self.vocabulary = Vocabulary(vocabulary_limit_bytes)
        self.in_memory = directory is None
        self._arrays = [_Array(spec, _open(directory)) for spec in specs]
        self._closing = weakref.finalize(self, _close, self._arrays)
        self._closing.atexit = False  # threads may still read; the kernel closes the files
        self._mapped: list[tf.Tensor] = []

    @classmethod
    def of_files(
        cls,
        specs: Sequence[ArraySpec],
        files: Sequence[str],
        strings: Sequence[bytes],
        *,
        in_memory: bool,
    ) -> Store:
        """Returns the store of arrays that `copy_to` wrote; the files may be deleted after that.

        Args:
            specs: the arrays.
            files: one for each array.
            strings: the vocabulary.
            in_memory: whether there is memory for the files' pages.

        Raises:
            OSError: a file cannot be opened.
        """
        _allow_open_files(len(specs))
        store = cls([])
        store.in_memory = in_memory
        for spec, file in zip(specs, files, strict=True):
            store._arrays.append(_Array.of_file(spec, file))
        store.vocabulary.freeze(strings)
        return store

    @property
    def num_bytes(self) -> int:
        """Size of all arrays and of the vocabulary so far."""
        return sum(array.num_bytes for array in self._arrays) + self.vocabulary.num_bytes

    @property
    def memory_bytes(self) -> int:
        """The part of `num_bytes` that is in memory."""
        return self.num_bytes if self.in_memory else self.vocabulary.num_bytes

    def append(self, blocks: Sequence[Any]) -> None:
        """Appends one block of rows to each array; see `Block`.

        Raises:
            VocabularyOutgrown: strings hardly repeat.
        """
        for array, block in zip(self._arrays, blocks, strict=True):
            if isinstance(block, tuple):
                indices, strings = block
                block = self.vocabulary.codes(strings)[indices]
            array.append(np.asarray(block))

    def spill(self, directory: str) -> None:
        """Moves all arrays to files in a directory."""
        self.in_memory = False
        for array in self._arrays:
            array.move(directory)

    def copy_to(self, files: Sequence[str]) -> None:
        """Writes each array into a separate file, for `of_files`.

        Raises:
            OSError: the disk is full, for example.
        """
        for array, file in zip(self._arrays, files, strict=True):
            with open(file, "xb") as target:
                array.copy_to(target.fileno())

    def close(self) -> None:
        """Frees the arrays, except those that tensors still use."""
        self._closing()

    def tensors(self) -> list[tf.Tensor]:
        """Returns the arrays as tensors of the current graph, or as eager ones."""
        if tf.executing_eagerly() and self._mapped:
            return self._mapped
        tensors = [array.tensor() for array in self._arrays]
        if tf.executing_eagerly():
            self._mapped = tensors
        else:
            _read_by.setdefault(tf.compat.v1.get_default_graph(), []).append(self)
        return tensors


class _Array:
    def __init__(self, spec: ArraySpec, file: int, num_bytes: int = 0) -> None:
        self._spec = spec
        self.file = file
        self._end = 0
        self.num_bytes = num_bytes
        if spec.cumulative and not num_bytes:
            self._write(np.zeros(1, np.int64))

    @classmethod
    def of_file(cls, spec: ArraySpec, path: str) -> _Array:
        # Writable, because TensorFlow requires writable memory; it is never written to.
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        return cls(spec, file, os.fstat(file).st_size)

    def append(self, block: np.ndarray) -> None:
        if not self._spec.cumulative:
            self._write(block)
            return
        ends = np.cumsum(block, dtype=np.int64) + self._end
        self._write(ends)
        self._end = int(ends[-1]) if len(ends) else self._end

    def copy_to(self, target: int) -> None:
        offset = 0
        while offset < self.num_bytes:
            offset += os.sendfile(target, self.file, offset, self.num_bytes - offset)

    def move(self, directory: str) -> None:
        target = _open(directory)
        self.copy_to(target)
        os.close(self.file)
        self.file = target

    def tensor(self) -> tf.Tensor:
        """Returns an eager tensor that maps the file, or one of a graph, which opens it to run."""
        if not self.num_bytes:
            return tf.zeros(self._shape, self._spec.dtype)
        if not tf.executing_eagerly():  # which caches the value of each name forever
            region = f"/dev/fd/{self.file}"
            return tf.raw_ops.ImmutableConst(
                dtype=self._spec.dtype, shape=self._shape, memory_region_name=region
            )
        # TensorFlow refuses read-only arrays; this one is never written to.
        pages = mmap.mmap(self.file, self.num_bytes)
        values = np.frombuffer(pages, self._spec.dtype.as_numpy_dtype).reshape(self._shape)
        return tf.experimental.dlpack.from_dlpack(values.__dlpack__())

    @property
    def _shape(self) -> list[int]:
        width = [] if self._spec.width is None else [self._spec.width]
        return [self.num_bytes // (self._spec.dtype.size * max(1, *width, 1)), *width]

    def _write(self, block: np.ndarray) -> None:
        rest = memoryview(np.ascontiguousarray(block)).cast("B") if block.size else b""
        self.num_bytes += len(rest)
        while rest:  # one call writes 2 GiB at most
            rest = rest[os.write(self.file, rest) :]


def _close(arrays: Sequence[_Array]) -> None:
    for array in arrays:
        os.close(array.file)


def _open(directory: str | None) -> int:
    """Returns the descriptor of a new file without a name, in memory if the directory is None."""
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create("generic_trainer_column", os.MFD_CLOEXEC)
    return unnamed_file(directory or private_folder())


def _allow_open_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * number + 1024  # a file that is mapped counts twice
    if soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


class VocabularyOutgrown(Exception):
    """There are too many distinct strings for a vocabulary."""


class Vocabulary:
    """Distinct strings and their codes; grows while records are read.

    Attributes:
        num_bytes: memory that it takes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.num_bytes = 0
        self._limit_bytes = limit_bytes
        self._codes: dict[bytes, int] = defaultdict(itertools.count().__next__)
        self._strings = tf.constant([], tf.string)

    def codes(self, strings: np.ndarray) -> np.ndarray:
        """Returns the codes, int32 [n], of distinct strings, bytes [n]; new ones get new codes.

        Raises:
            VocabularyOutgrown: the limit is passed.
        """
        known = len(self._codes)
        codes = np.fromiter(
            map(self._codes.__getitem__, strings), CODE.as_numpy_dtype, len(strings)
        )
        self.num_bytes += sum(len(string) + _ENTRY_BYTES for string in strings[codes >= known])
        if self.num_bytes > self._limit_bytes:
            raise VocabularyOutgrown
        return codes

    def freeze(self, strings: Sequence[bytes] | None = None) -> None:
        """Makes the tensor of all strings: those that were looked up, or those given."""
        strings = list(self._codes) if strings is None else strings
        self._codes = {}
        self._strings = eagerly(lambda: tf.constant(strings, tf.string))
        self.num_bytes = sum(map(_tensor_bytes, strings))

    def strings(self) -> list[bytes]:
        """Returns the strings by code, once they are frozen."""
        return list(eagerly(self._strings.numpy))

    def tensor(self) -> tf.Tensor:
        """Returns the strings by code, string [n], as a tensor of the current graph or eager."""
        if tf.executing_eagerly():
            return self._strings
        return tf.constant(eagerly(self._strings.numpy), tf.string)


def _tensor_bytes(string: bytes) -> int:
    # A `tstring`: 24 bytes, 22 characters of which fit into it.
    return 24 + (len(string) if len(string) > 22 else 0)
