"""Wall time of a pipeline's training step: TFX's Trainer against GenericTrainer.

    python -m benchmarks.bench_steps [--examples penguin taxi mnist imdb] [--steps 200] [--runs 5]

Of TFX's own examples the module files train unchanged, on data that a pipeline has prepared with
CsvExampleGen, SchemaGen and Transform. Both components take turns in this process: packing the
user's code as at compile time, then the executor. `GenericTrainer` makes all default checks; with
`eval config` it also rehearses the Evaluator on raw examples. Prints medians, and how many seconds
more than TFX's each took.

TFX's examples are written for Keras 2, which runs them here. The penguins are the Palmer ones, the
taxi trips and reviews come with TFX, and the digits of scikit-learn, made 28 x 28, are the images.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["GENERIC_TRAINER_CACHE_DIR"] = "off"  # every run is a first one

from benchmarks import _figures
from benchmarks._steps import Sample, medians, run_step, take_turns
from benchmarks._tfx_examples import (
    before_training,
    run_components,
    transform_of,
    write_digits,
    write_penguins,
)

_TFX = "tfx.components.Trainer"
_OURS, _WITH_EVALUATOR = "GenericTrainer", "GenericTrainer, eval config"
_RAW = "raw_examples"
_STEPS = 200


@dataclasses.dataclass(frozen=True)
class Example:
    """One of TFX's examples.

    Attributes:
        module: import path of the module file.
        label: raw feature, which the Evaluator compares with.
        metric: of the Evaluator.
        write: writes the data as CSV, or as TFRecord files of examples, into a folder.
        is_csv: which of the two it is.
    """

    module: str
    label: str
    metric: str
    write: Callable[[Path], None]
    is_csv: bool = True


def _link_of_tfx(relative: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        spec = importlib.util.find_spec("tfx.examples")
        assert spec is not None and spec.submodule_search_locations is not None
        source = Path(spec.submodule_search_locations[0], relative)
        (folder / "data.csv").symlink_to(source)

    return write


EXAMPLES = {
    "penguin": Example(
        "tfx.examples.penguin.penguin_utils_keras",
        "species",
        "SparseCategoricalAccuracy",
        write_penguins,
    ),
    "taxi": Example(
        "tfx.examples.chicago_taxi_pipeline.taxi_utils_native_keras",
        "tips",
        "MeanSquaredError",
        _link_of_tfx("chicago_taxi_pipeline/data/simple/data.csv"),
    ),
    "mnist": Example(
        "tfx.examples.mnist.mnist_utils_native_keras",
        "image_class",
        "SparseCategoricalAccuracy",
        write_digits,
        is_csv=False,
    ),
    "imdb": Example(
        "tfx.examples.imdb.imdb_utils_native_keras",
        "label",
        "BinaryAccuracy",
        _link_of_tfx("imdb/data/imdb_small_with_labels.txt"),
    ),
}


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument("--runs", type=int, default=5)
    _figures.add_json_option(parser)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"Wall time of the step at {options.steps} training steps, seconds, median")
    print(f"{'example':8} {'component':29}{'packing':>8}{'executor':>9}{'total':>7}{'more':>7}")
    figures = []
    for name in options.examples:
        with tempfile.TemporaryDirectory() as folder:
            samples = _measure(EXAMPLES[name], Path(folder), options.steps, options.runs)
        figures += _print(name, samples, options.steps)
    _figures.write(figures, options.json)


def _measure(example: Example, folder: Path, steps: int, runs: int) -> dict[str, list[Sample]]:
    """Returns component → its runs, which took turns."""
    prepared = _prepare(example, folder)
    return take_turns(
        (_TFX, _OURS, _WITH_EVALUATOR),
        runs,
        lambda name, number: _run(name, example, prepared, folder / f"{name}-{number}", steps),
    )


def _prepare(example: Example, folder: Path) -> dict[str, Any]:
    """Runs what comes before the training step; returns input → its artifact."""
    from pipelines._results import last_run

    data = folder / "data"
    data.mkdir()
    example.write(data)
    examples, statistics_gen, schema = before_training(data, is_csv=example.is_csv)
    transform = transform_of(example.module, examples, schema)
    results = last_run(run_components([examples, statistics_gen, schema, transform], folder))
    return {
        name: _artifact(name, results.uri(output)) for name, output in (
            ("examples", "transformed_examples"), (_RAW, "examples"),
            ("transform_graph", "transform_graph"), ("schema", "schema"),
        )
    }  # fmt: skip


def _artifact(name: str, uri: str) -> Any:
    from tfx.types import artifact_utils, standard_artifacts

    from benchmarks import _artifacts

    types = {
        "schema": standard_artifacts.Schema,
        "transform_graph": standard_artifacts.TransformGraph,
    }
    artifact = _artifacts.artifact_at(types.get(name, standard_artifacts.Examples), uri)
    if name not in types:
        artifact.split_names = artifact_utils.encode_split_names(["train", "eval"])
    return artifact


def _run(name: str, example: Example, prepared: dict[str, Any], root: Path, steps: int) -> Sample:
    from tfx import v1 as tfx
    from tfx.types import Channel

    from generic_trainer import GenericTrainer

    root.mkdir()
    arguments = {"eval_config": _eval_config(example)} if name == _WITH_EVALUATOR else {}
    inputs = {key: artifact for key, artifact in prepared.items() if key != _RAW}
    component_class = tfx.components.Trainer if name == _TFX else GenericTrainer
    sample, _ = run_step(
        lambda: component_class(
            module_file=_own_copy(example.module, root / "code"),
            train_args=tfx.proto.TrainArgs(num_steps=steps),
            eval_args=tfx.proto.EvalArgs(num_steps=5),
            **{key: Channel(type=type(artifact)) for key, artifact in inputs.items()},
            **arguments,
        ),
        # The pipeline tells our component what the transform graph was made from.
        inputs if name == _TFX else prepared,
        root,
    )
    return sample


def _own_copy(module: str, folder: Path) -> str:
    """Copies a module file to be packed with the modules beside it, as from a user's folder."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    folder.mkdir()
    source = Path(spec.origin)
    (folder / source.name).write_bytes(source.read_bytes())
    return str(folder / source.name)


def _eval_config(example: Example) -> Any:
    from tensorflow_model_analysis.proto import config_pb2 as tfma

    metric = tfma.MetricConfig(class_name=example.metric)
    return tfma.EvalConfig(
        model_specs=[tfma.ModelSpec(label_key=example.label)],
        slicing_specs=[tfma.SlicingSpec()],
        metrics_specs=[tfma.MetricsSpec(metrics=[metric])],
    )


def _print(example: str, samples: dict[str, list[Sample]], steps: int) -> Iterator[_figures.Figure]:
    fewer = "" if steps == _STEPS else f" at {steps} training steps"
    totals = {name: [sample.total for sample in taken] for name, taken in samples.items()}
    reference = statistics.median(totals[_TFX])
    for name, taken in samples.items():
        packing, executor, total = medians(taken)
        print(
            f"{example:8} {name:29}{packing:>8.2f}{executor:>9.2f}{total:>7.2f}"
            f"{total - reference:>+7.2f}",
            flush=True,
        )
        if name != _TFX:
            yield _figures.compare(
                f"step of {example}{fewer}, {name}", totals[name], "s", _TFX, totals[_TFX],
                less_is_better=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
