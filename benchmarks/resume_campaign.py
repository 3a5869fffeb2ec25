"""Ends fits at random steps and resumes them, with all that draws or remembers in a training.

Each round trains one small model of one kind with one Keras, from one reader or a pipeline of
`tf.data`. Kinds are layers that draw, gradient accumulation, mixed precision, optimizers and
variables of a model's own, adapted layers, two fits of one model, copied callbacks. The data are
endless, end with each epoch, or end between epochs. A callback with paths records the steps. A fit
is ended one to three times, and resumed by `training.resume_callbacks`: in process by an exception
or by SIGTERM, and on the launcher `local`, where one worker or two train, by a SIGKILL or SIGTERM
of one of them. Weights and history have to equal, bit by bit, those of a fit that was never ended
and used no checkpoints. The history of two workers with Keras 3 may differ by rounding, as its
checkpoints have the sum of a metric over both.

    python -m benchmarks.resume_campaign [--rounds 391] [--first 0] [--seed 0] [--kind KIND]
                                         [--keras keras|tf_keras] [--launcher NAME]

Goes through all combinations in a random order, as often as the rounds allow; on a launcher from
one reader and endless alone. Prints one line for each round, which `--first N --rounds 1` repeats
alone, and a summary; exits with 1 if a round differs.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx_bsl.public.tfxio import TensorFlowDatasetOptions

from generic_trainer import data, training
from generic_trainer.errors import WorkerLostError
from generic_trainer.executors import FN_ARGS_FACTORY
from generic_trainer.launchers import (
    Distribution,
    ExamplesFormat,
    Job,
    TrainingRequest,
    launch,
)
from generic_trainer.user_code import bundle_module_file

ROOT = Path(__file__).parents[1]

FILES, EXAMPLES_PER_FILE, BATCH_SIZE, EPOCHS = 3, 20, 6, 4
STEPS_PER_EPOCH = FILES * EXAMPLES_PER_FILE // BATCH_SIZE
SCHEMA = """
    feature { name: "x" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
    feature { name: "y" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
"""
OWN = "tf.data"  # a pipeline of the user's, without our reader
READERS = ("memory", "disk", "stream", OWN)
PASSES, ENDLESS, BETWEEN_EPOCHS = "passes", "endless", "between epochs"
IN_PROCESS = "in_process"
# Launcher → its workers.
WORKERS = {"local": 1, "two workers": 2}
_runs = itertools.count()
_TF_EXAMPLE = 6  # tfx.proto.example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE


class Ended(Exception):
    """Ends a fit as an error of the user's would."""


class Fit(NamedTuple):
    """The subject of a round: a key of `KINDS`, a Keras, a reader, where data end, a launcher."""

    kind: str
    keras: str
    reader: str
    ends: str
    launcher: str = IN_PROCESS


# ---- models --------------------------------------------------------------------------------------


def plain(keras: Any, *layers: Any, optimizer: Any = "adam") -> Any:
    """Returns a compiled model with some layers in the middle, which are given images of 4 x 4."""
    between = [keras.layers.Dense(16, activation="relu"), keras.layers.Reshape((4, 4, 1)), *layers]
    model = keras.Sequential([*between, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def recurrent(keras: Any) -> Any:
    """Returns a model whose recurrent layer drops inputs and states."""
    lstm = keras.layers.LSTM(3, dropout=0.3, recurrent_dropout=0.3)
    return plain(keras, keras.layers.Reshape((4, 4)), lstm)


def accumulating(keras: Any) -> Any:
    """Returns a model that applies the gradients of three steps at once."""
    if keras.__version__.startswith("3."):
        return plain(keras, optimizer=keras.optimizers.Adam(gradient_accumulation_steps=3))

    class Accumulating(keras.Sequential):
        def train_step(self, batch: Any) -> dict[str, Any]:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            for total, gradient in zip(
                self.sums, tape.gradient(loss, self.trainable_variables), strict=True
            ):
                total.assign_add(gradient)
            tf.cond(self.seen.assign_add(1) % 3 == 0, self.apply, lambda: None)
            return {"loss": loss}

        def apply(self) -> None:
            self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
            for total in self.sums:
                total.assign(tf.zeros_like(total))

    model = Accumulating([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.build((None, 1))
    zeros = [tf.zeros_like(each) for each in model.trainable_variables]
    model.sums = [tf.Variable(each, trainable=False) for each in zeros]
    model.seen = tf.Variable(0, trainable=False)
    model.compile("adam", "mse")
    return model


def mixed_precision(keras: Any) -> Any:
    """Returns a model in float16 whose loss is scaled, and scaled anew every three steps."""
    is_keras_3 = keras.__version__.startswith("3.")
    home = keras.optimizers if is_keras_3 else keras.mixed_precision
    optimizer = home.LossScaleOptimizer(keras.optimizers.Adam(), dynamic_growth_steps=3)
    return plain(keras, keras.layers.Dense(2, dtype="mixed_float16"), optimizer=optimizer)


def with_own_optimizers(keras: Any) -> Any:
    """Returns a model that trains two layers with an optimizer each, as keras.io's GAN does."""

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Dense(2), keras.layers.Dense(1)]

        def compile(self) -> None:
            super().compile(loss="mse")
            self.own = {"first": keras.optimizers.Adam(0.02)}
            self.other = keras.optimizers.RMSprop(0.01, momentum=0.5)

        def call(self, x: Any) -> Any:
            return self.parts[1](self.parts[0](x))

        def train_step(self, batch: Any) -> dict[str, Any]:
            x, y = batch
            optimizers = (self.own["first"], self.other)
            for part, optimizer in zip(self.parts, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x) - y) ** 2)
                gradients = tape.gradient(loss, part.trainable_variables)
                optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own()
    model.compile()
    return model


def with_own_variables(keras: Any) -> Any:
    """Returns a model with a counter and a moving target of its own."""

    class Own(keras.Sequential):
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.seen = tf.Variable(0.0, trainable=False)
            self.targets = [{"moving": tf.Variable([[0.5]], trainable=False)}]

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            moving = self.targets[0]["moving"]
            self.seen.assign_add(0.1)
            moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(y))
            return super().train_step((x + self.seen, y + moving))

    model = Own([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def adapted(keras: Any) -> Any:
    """Returns a model with layers that have learned by `adapt`."""
    scaled, bins = keras.layers.Normalization(), keras.layers.Discretization(num_bins=3)
    for layer in (scaled, bins):
        layer.adapt(np.linspace(0, 1, 20, dtype="float32")[:, None])
    x = keras.Input((1,))
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(bins(x)))
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([scaled(x), embedded]))
    model = keras.Model(x, outputs)
    model.compile("adam", "mse")
    return model


TWO_FITS, COPIED = "two fits", "copied callbacks"
KINDS: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda keras: plain(keras, keras.layers.Dropout(0.4)),
    "augmentation": lambda keras: plain(
        keras, keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.3, 0.3)
    ),
    "noise": lambda keras: plain(keras, keras.layers.GaussianNoise(0.5)),
    "recurrent dropout": recurrent,
    "batch norm": lambda keras: plain(keras, keras.layers.BatchNormalization()),
    "plateau": lambda keras: plain(keras),
    "accumulation": accumulating,
    "mixed precision": mixed_precision,
    "own optimizers": with_own_optimizers,
    "own variables": with_own_variables,
    "adapted": adapted,
    TWO_FITS: lambda keras: plain(keras, keras.layers.Dropout(0.4)),
    COPIED: lambda keras: plain(keras),
    "all that draws": lambda keras: plain(
        keras,
        keras.layers.RandomFlip(),
        keras.layers.Dropout(0.2),
        keras.layers.BatchNormalization(),
        keras.layers.GaussianNoise(0.1),
    ),
}

# ---- fits ----------------------------------------------------------------------------------------


def write_examples(directory: Path) -> str:
    """Writes several files of examples; returns the pattern that matches them."""
    for number in range(FILES):
        with tf.io.TFRecordWriter(str(directory / f"data-{number}")) as writer:
            for place in range(EXAMPLES_PER_FILE):
                x = (number * EXAMPLES_PER_FILE + place) / 60
                features = {
                    name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                    for name, value in {"x": x, "y": 2 * x}.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return str(directory / "data-*")


def dataset(pattern: str, reader: Any, ends: str) -> tf.data.Dataset:
    """Returns shuffled batches (x, y)."""
    if reader == OWN:
        return own_dataset(pattern, ends)
    options = TensorFlowDatasetOptions(
        batch_size=BATCH_SIZE, num_epochs=None if ends == ENDLESS else 1, label_key="y"
    )
    schema = text_format.Parse(SCHEMA, schema_pb2.Schema())
    batches = data.make_dataset_factory(seed=5, path=reader)([pattern], options, schema)
    return batches.map(lambda features, label: (features["x"], label))


def own_dataset(pattern: str, ends: str) -> tf.data.Dataset:
    """Returns what `dataset` does, from a pipeline as TensorFlow's guides write it."""
    scalar = tf.io.FixedLenFeature([1], tf.float32)
    files = tf.data.Dataset.list_files(pattern, shuffle=True, seed=2)
    rows = files.interleave(tf.data.TFRecordDataset, cycle_length=2).shuffle(20, seed=1)
    rows = rows.repeat() if ends == ENDLESS else rows
    batches = rows.batch(BATCH_SIZE).map(
        lambda records: tf.io.parse_example(records, {"x": scalar, "y": scalar})
    )
    return batches.map(lambda parsed: (parsed["x"], parsed["y"])).prefetch(tf.data.AUTOTUNE)


def made(fit: Fit) -> Any:
    """Returns the model of a fit; that of Keras 2 draws from generators, which can be saved."""
    keras = importlib.import_module(fit.keras)
    if fit.keras == "keras":
        return KINDS[fit.kind](keras)
    keras.backend.experimental.enable_tf_random_generator()
    try:
        return KINDS[fit.kind](keras)
    finally:
        keras.backend.experimental.disable_tf_random_generator()


class Result(NamedTuple):
    """The results of a fit: weights, history, and the steps that its callback has recorded."""

    weights: list[Any]
    history: dict[str, list[float]]
    steps: list[int]


def recorder(keras: Any, path: str) -> Any:
    """Returns a callback that records steps, and has the path of a file."""

    class Recorder(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.path = path
            self.steps: list[int] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps.append(batch)

        def on_train_end(self, logs: Any = None) -> None:
            if self.path != path:
                raise ValueError(f"the path is that of another run: {self.path}")

    return Recorder()


def result(
    fit: Fit, pattern: str, directory: str = "", *, every_steps: int = 1, end: Any = None
) -> Result:
    """Trains, and resumes where a directory of checkpoints is given.

    `end` is called at the end of every batch that this process trains, with its number.
    """
    keras = importlib.import_module(fit.keras)
    keras.utils.set_random_seed(1)
    with training.get_strategy().scope():
        model = made(fit)
    data = dataset(pattern, fit.reader, fit.ends)
    steps_per_epoch = {ENDLESS: STEPS_PER_EPOCH, BETWEEN_EPOCHS: STEPS_PER_EPOCH // 2}
    count, fn_args = itertools.count(1), types.SimpleNamespace(checkpoint_dir=directory)
    history, steps = dict[str, list[float]](), list[int]()
    for name in ("first", "second") if fit.kind == TWO_FITS else ("first",):
        record = recorder(keras, f"{tempfile.gettempdir()}/{next(_runs)}")
        callbacks = [keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0), record]
        if directory:
            callbacks = training.resume_callbacks(
                fn_args, callbacks=callbacks, every_steps=every_steps, name=name
            )
        if fit.kind == COPIED:
            callbacks = copy.deepcopy(callbacks)
            record = callbacks[1]
        if end is not None:
            on_end = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: end(next(count))
            )
            callbacks.append(on_end)
        fitted = model.fit(
            data,
            epochs=EPOCHS,
            steps_per_epoch=steps_per_epoch.get(fit.ends),
            verbose=0,
            callbacks=callbacks,
        )
        for key, values in fitted.history.items():
            history.setdefault(key, []).extend(map(float, values))
        steps += record.steps
    return Result([np.asarray(each).tolist() for each in model.get_weights()], history, steps)


def ended_and_resumed(fit: Fit, pattern: str, dice: random.Random) -> tuple[Result, int]:
    """Returns the result of a fit that was ended on the way, and how often it was."""
    with tempfile.TemporaryDirectory(prefix="resume-campaign-") as directory:
        ends = dice.randint(1, 3)
        for _ in range(ends):
            at = dice.randint(1, EPOCHS * STEPS_PER_EPOCH - 1)
            by_signal = dice.random() < 0.3 and fit.kind != COPIED  # which listens to no signal

            def end(batch: int, at: int = at, by_signal: bool = by_signal) -> None:
                if batch == at:
                    if not by_signal:
                        raise Ended
                    os.kill(os.getpid(), signal.SIGTERM)

            try:
                result(fit, pattern, directory, every_steps=dice.randint(1, 6), end=end)
            except (Ended, WorkerLostError):
                continue
            break  # so little was left to train
        return result(fit, pattern, directory), ends


# ---- on launchers --------------------------------------------------------------------------------


def launched(fit: Fit, pattern: str, ends: list[dict[str, Any]] | None = None) -> Result:
    """Trains on a launcher; `ends` says how each attempt but the last ends, None for unbroken."""
    with tempfile.TemporaryDirectory(prefix="resume-campaign-") as directory:
        folder = Path(directory)
        module = folder / "trainer.py"
        module.write_text(
            f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from benchmarks.resume_campaign import train_as_worker as run_fn\n"
        )
        request = TrainingRequest(
            user_code=bundle_module_file(str(module), str(folder)),
            train_files=(pattern,),
            eval_files=(pattern,),
            split_files={"train": (pattern,), "eval": (pattern,)},
            examples_format=ExamplesFormat(_TF_EXAMPLE),
            model_dir=str(folder / "model"),
            model_run_dir=str(folder / "model_run" / "1"),
            scratch_dir=str(folder / "scratch"),
            custom_config={"fit": list(fit), "folder": directory, "ends": ends, "files": pattern},
        )
        (folder / "scratch").mkdir()
        distribution = Distribution(
            launcher="local",
            num_workers=WORKERS[fit.launcher],
            max_failures=3,
            env={"TF_USE_LEGACY_KERAS": str(int(fit.keras == "tf_keras"))},
        )
        launch(Job(request=request, fn_args_factory=FN_ARGS_FACTORY, distribution=distribution))
        return Result(**json.loads((folder / "result.json").read_text()))


def train_as_worker(fn_args: Any) -> None:
    """`run_fn` of the rounds on launchers."""
    config = fn_args.custom_config
    fit, folder, ends = Fit(*config["fit"]), Path(config["folder"]), config["ends"]
    attempt = len(list(folder.glob("ended-*")))
    how: dict[str, Any] = ends[attempt] if ends and attempt < len(ends) else {"step": 0}
    is_meant = how.get("worker", 0) == (0 if training.is_chief() else 1)

    def end(batch: int) -> None:
        if batch == how["step"] and is_meant:
            (folder / f"ended-{attempt}").touch()
            os.kill(os.getpid(), how["signal"])

    directory = fn_args.checkpoint_dir if ends is not None else ""
    every_steps = ends[0]["every_steps"] if ends else 1
    found = result(fit, config["files"], directory, every_steps=every_steps, end=end)
    if training.is_chief():
        (folder / "result.json").write_text(json.dumps(found._asdict()))
        os.makedirs(fn_args.serving_model_dir)


def killed_and_resumed(fit: Fit, pattern: str, dice: random.Random) -> tuple[Result, int]:
    """Returns the result of a fit on a launcher, and how often a worker was killed."""
    ends = [
        {
            "step": dice.randint(1, EPOCHS * STEPS_PER_EPOCH - 1),
            "signal": int(dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))),
            "worker": dice.randrange(WORKERS[fit.launcher]),
            "every_steps": dice.randint(1, 6),
        }
        for _ in range(dice.randint(1, 3))
    ]
    return launched(fit, pattern, ends), len(ends)


def are_equal(fit: Fit, found: Result, straight: Result) -> bool:
    """Returns whether a resumed fit has the result of the straight one."""
    if fit.launcher != "two workers" or fit.keras == "tf_keras":
        return found == straight
    return found[::2] == straight[::2] and all(
        np.allclose(found.history[name], values, rtol=1e-5, atol=0.0)
        for name, values in straight.history.items()
    )


def rounds(
    dice: random.Random, only_keras: str | None, only_launcher: str | None, only_kind: str | None
) -> Iterator[Fit]:
    """Yields all combinations in a random order, again and again."""
    kinds = [only_kind] if only_kind else [*KINDS]
    packages = [only_keras] if only_keras else ["keras", "tf_keras"]
    places = [only_launcher] if only_launcher else [IN_PROCESS, *WORKERS]
    fits = [
        Fit(*each)
        for each in itertools.product(
            kinds, packages, READERS, (PASSES, ENDLESS, BETWEEN_EPOCHS), places
        )
        if each[-1] == IN_PROCESS or each[2:4] == ("disk", ENDLESS)
    ]
    # Gradients are exchanged in each step: TensorFlow has no collectives in a `cond`.
    fits = [fit for fit in fits if fit[:2] + fit[4:] != ("accumulation", "tf_keras", "two workers")]
    while True:
        yield from dice.sample(fits, len(fits))


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds, and prints them and what they came to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=391)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keras", choices=["keras", "tf_keras"])
    parser.add_argument("--launcher", choices=[IN_PROCESS, *WORKERS])
    parser.add_argument("--kind", choices=[*KINDS])
    options = parser.parse_args(arguments)
    dice = random.Random(options.seed)
    fits = rounds(dice, options.keras, options.launcher, options.kind)
    numbers = range(options.first, options.first + options.rounds)
    ends = differing = 0
    with tempfile.TemporaryDirectory(prefix="resume-campaign-") as directory:
        pattern = write_examples(Path(directory))
        for number, fit in zip(numbers, itertools.islice(fits, options.first, None), strict=False):
            dice = random.Random(f"{options.seed}-{number}")
            if fit.launcher == IN_PROCESS:
                straight = result(fit, pattern)
                found, times = ended_and_resumed(fit, pattern, dice)
            else:
                straight = launched(fit, pattern)
                found, times = killed_and_resumed(fit, pattern, dice)
            ends += times
            is_equal = are_equal(fit, found, straight)
            differing += not is_equal
            verdict = "equal" if is_equal else "DIFFERS"
            print(f"{number:4} {verdict:8}{times} {' '.join(map(str, fit))}", flush=True)
    print(f"seed {options.seed}: {options.rounds} rounds, {ends} ends, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
