"""How many examples each split has, counted when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from generic_trainer.data._count import count_examples

__all__ = ["SplitCounts"]


class SplitCounts(Mapping[str, int]):
    """Split name → number of examples; a split's files are read at the first look at it.

    What the reader has read already is known and not read again.
    """

    def __init__(self, split_patterns: Mapping[str, Sequence[str]]) -> None:
        """Remembers where the splits are.

        Args:
            split_patterns: split name → file patterns of TFRecord files.
        """
        self._split_patterns = dict(split_patterns)

    def __getitem__(self, split: str) -> int:
        return count_examples(self._split_patterns[split])

    def __iter__(self) -> Iterator[str]:
        return iter(self._split_patterns)

    def __len__(self) -> int:
        return len(self._split_patterns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._split_patterns)})"
