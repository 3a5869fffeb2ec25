"""Beam's transforms give the same elements without a runner as with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import pvalue
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import GlobalWindows

from generic_trainer.validation._in_process_beam import InProcessPipeline

IN_MEMORY = PipelineOptions(["--direct_running_mode=in_memory"])
WORDS = ["a", "bb", "a", "ccc", "bb", "a"]


class Batches(beam.DoFn):  # type: ignore[misc]
    """Pairs, and what is left at the end of a bundle."""

    def setup(self) -> None:
        self.is_set_up = True

    def start_bundle(self) -> None:
        self.held: list[str] = []

    def process(self, element: str) -> Iterator[list[str]]:
        self.held.append(element)
        if len(self.held) == 4:
            yield self.held[:]
            self.held.clear()

    def finish_bundle(self) -> Iterator[Any]:
        if self.is_set_up and self.held:
            yield GlobalWindows.windowed_value_at_end_of_window(self.held)


def words(pipeline: Any) -> Any:
    return pipeline | beam.Create(WORDS)


def grouped(pipeline: Any) -> Any:
    pairs = words(pipeline) | beam.Map(lambda word, n: (word, n), 1) | beam.GroupByKey()
    return pairs | beam.MapTuple(lambda word, ones: (word, len(list(ones))))


def fanned_out(pipeline: Any) -> Any:
    pairs = words(pipeline) | beam.Map(lambda word: (word, len(word)))
    return pairs | beam.CombinePerKey(beam.combiners.MeanCombineFn()).with_hot_key_fanout(3)


def with_side_inputs(pipeline: Any) -> Any:
    collection = words(pipeline)
    counts = collection | beam.combiners.Count.PerElement()
    short = collection | "Short" >> beam.Filter(lambda word: len(word) < 2)
    return collection | "Sides" >> beam.FlatMap(
        lambda word, count, ones, longest: [(word, count[word], len(list(ones)), longest)],
        pvalue.AsDict(counts),
        ones=pvalue.AsIter(short),
        longest=3,
    )


def flattened(pipeline: Any) -> Any:
    upper = words(pipeline) | beam.Map(str.upper)
    return (upper, pipeline | "Other" >> beam.Create(["x"])) | beam.Flatten()


BUILT = [
    grouped,
    fanned_out,
    with_side_inputs,
    flattened,
    lambda begin: words(begin) | beam.CombineGlobally(max),
    lambda begin: begin | beam.Create([]) | beam.CombineGlobally(sum),
    lambda begin: words(begin) | beam.ParDo(Batches()) | beam.Map(len),
]


def test_elements_are_those_of_beams_runner() -> None:
    alone = InProcessPipeline()
    with beam.Pipeline(runner="DirectRunner", options=IN_MEMORY) as pipeline:
        for number, build in enumerate(BUILT):
            transform = f"Built{number}" >> beam.ptransform_fn(build)()
            elements = (alone | transform).elements
            assert elements
            assert_that(pipeline | transform, equal_to(elements), label=f"Equal{number}")


def test_what_would_be_written_is_kept() -> None:
    pipeline = InProcessPipeline()
    words(pipeline) | beam.io.WriteToText("/nowhere/words")
    assert pipeline.written == WORDS


def test_says_what_only_a_runner_knows() -> None:
    with pytest.raises(NotImplementedError, match="several outputs"):
        words(InProcessPipeline()) | beam.ParDo(lambda w: [pvalue.TaggedOutput("t", w)])
    with pytest.raises(NotImplementedError, match="AsSingleton"):
        words(pipeline := InProcessPipeline()) | beam.Map(
            lambda word, one: one, pvalue.AsSingleton(pipeline | "One" >> beam.Create([1]))
        )


def test_refuses_a_label_that_is_used_twice_as_beam_does() -> None:
    collection = words(InProcessPipeline())
    collection | "Upper" >> beam.Map(str.upper)
    with pytest.raises(RuntimeError, match="label 'Upper' exists"):
        collection | "Upper" >> beam.Map(str.upper)
