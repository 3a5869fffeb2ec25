"""A Beam pipeline of a few elements, computed step by step while it is built.

Beam's own runner takes seconds to translate a pipeline of TFMA's, to serialize it and to run it,
whatever the number of elements. Here each transform is applied at once, to lists.

What this does not know, such as windows and several outputs, raises: there the caller takes Beam's
runner. So it does after any other error, whose cause may be here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from generic_trainer._core import internals


class _Elements(pvalue.PCollection):  # type: ignore[misc]
    """A collection whose elements are there already."""

    def __init__(self, pipeline: InProcessPipeline, elements: list[Any]) -> None:
        windowing = beam.Windowing(GlobalWindows())
        super().__init__(pipeline, element_type=beam.typehints.Any, windowing=windowing)
        self.elements = elements


class InProcessPipeline:
    """What a transform is applied to in place of a `beam.Pipeline`.

    Attributes:
        written: what was to be written; there are no files.
    """

    runner = None  # a transform looks whether it is one that computes at once

    def __init__(self) -> None:
        self.written: list[Any] = []
        self._labels: list[str] = []
        self._applied: set[tuple[str, ...]] = set()

    def __or__(self, transform: Any) -> Any:
        return self.apply(transform, pvalue.PBegin(self))

    def apply(self, transform: Any, value: Any = None, label: str | None = None) -> Any:
        """Computes a transform; called by Beam's operators.

        Args:
            transform: with or without a label of its own.
            value: a collection, several of them, or the pipeline's beginning.
            label: of this application.

        Returns:
            What the transform returns: a collection, or several of them.

        Raises:
            RuntimeError: a label was used twice, as Beam does not allow.
            NotImplementedError: only Beam's runner knows this transform.
        """
        if isinstance(transform, internals.BEAM_NAMED_TRANSFORM.get()):
            return self.apply(transform.transform, value, label or transform.label)
        self._labels.append(label or transform.label)
        try:
            if tuple(self._labels) in self._applied:
                raise RuntimeError(f"a transform with the label {self._labels[-1]!r} exists")
            self._applied.add(tuple(self._labels))
            return self._compute(transform, value)
        finally:
            self._labels.pop()

    def _compute(self, transform: Any, value: Any) -> Any:
        if isinstance(transform, beam.io.Write):
            self.written += value.elements
            return value
        if isinstance(transform, beam.Create):
            elements = list(transform.values)
        elif isinstance(transform, beam.Flatten):
            elements = [element for each in value for element in each.elements]
        elif isinstance(transform, beam.GroupByKey):
            elements = list(_by_key(value.elements).items())
        elif isinstance(transform, beam.CombinePerKey):
            args, kwargs = _arguments(transform)
            elements = list(_combine(transform.fn, value.elements, args, kwargs))
        elif isinstance(transform, internals.BEAM_FANOUT.get()):
            combine_fn = internals.BEAM_FANOUT_COMBINE_FN.of(transform)
            elements = list(_combine(combine_fn, value.elements, (), {}))
        elif isinstance(transform, beam.ParDo):
            elements = list(_process(transform, value.elements))
        else:
            return transform.expand(value)
        return _Elements(self, elements)


def _process(transform: Any, elements: Iterable[Any]) -> Iterator[Any]:
    fn = transform.fn
    args, kwargs = _arguments(transform)
    fn.setup()
    try:
        yield from _outputs(fn.start_bundle())
        for element in elements:
            yield from _outputs(fn.process(element, *args, **kwargs))
        yield from _outputs(fn.finish_bundle())
    finally:
        fn.teardown()


def _outputs(outputs: Iterable[Any] | None) -> Iterator[Any]:
    for output in outputs or ():
        if isinstance(output, pvalue.TaggedOutput):
            raise NotImplementedError("several outputs")
        yield output.value if isinstance(output, WindowedValue) else output


def _combine(
    fn: Any, pairs: Iterable[tuple[Any, Any]], args: Iterable[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yields key and combined value, with each step that a runner on several machines takes."""
    fn.setup(*args, **kwargs)
    try:
        for key, values in _by_key(pairs).items():
            accumulator = fn.create_accumulator(*args, **kwargs)
            for value in values:
                accumulator = fn.add_input(accumulator, value, *args, **kwargs)
            accumulators = [fn.compact(accumulator, *args, **kwargs)]
            merged = fn.merge_accumulators(accumulators, *args, **kwargs)
            yield key, fn.extract_output(merged, *args, **kwargs)
    finally:
        fn.teardown(*args, **kwargs)


def _by_key(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _arguments(transform: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a transform's function, side inputs as what they hold."""
    args, kwargs = transform.raw_side_inputs
    return [_held(each) for each in args], {name: _held(each) for name, each in kwargs.items()}


def _held(argument: Any) -> Any:
    if not isinstance(argument, pvalue.AsSideInput):
        return argument
    elements = argument.pvalue.elements
    if isinstance(argument, (pvalue.AsIter, pvalue.AsList)):
        return list(elements)
    if isinstance(argument, pvalue.AsDict):
        return dict(elements)
    raise NotImplementedError(f"{type(argument).__name__} as a side input")
