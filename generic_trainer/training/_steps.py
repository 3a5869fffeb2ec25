"""The number of training steps that a number of epochs takes."""

from __future__ import annotations

from collections.abc import Sequence

from generic_trainer.errors import ConfigurationError


def steps_for(
    epochs: int,
    batch_size: int,
    *,
    num_examples: int | None = None,
    files: str | Sequence[str] | None = None,
) -> int:
    """Returns the number of training steps that show every example `epochs` times.

    ::

        steps = training.steps_for(3, batch_size=256, files=fn_args.train_files)
        model.fit(dataset, epochs=3, steps_per_epoch=steps // 3)

    1. Epochs follow one another without a gap, as they do in TFX's datasets: the last batch of an
       epoch is filled up with examples of the next. So this is not `epochs` times the steps of one
       epoch, but the examples of all epochs divided by the batch size, rounded up.
    2. `batch_size` is the global one: the sum over all replicas.

    Args:
        epochs: passes over the examples.
        batch_size: examples per step.
        num_examples: number of examples of one pass, such as `fn_args.num_examples["train"]`.
        files: patterns to count the examples of where their number is not known. The files are
            read for that, unless the reader has seen them already.

    Raises:
        ConfigurationError: a number is not positive, or not exactly one of `num_examples` and
            `files` is given.
        DataError: `files` cannot be read.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigurationError(f"{name}: expected at least 1, found {value}")
    if (num_examples is None) == (files is None):
        raise ConfigurationError("expected exactly one of num_examples and files")
    if files is not None:
        from generic_trainer.data import count_examples

        num_examples = count_examples(files)
    if not num_examples or num_examples < 1:
        raise ConfigurationError(f"num_examples: expected at least 1, found {num_examples}")
    return -(-epochs * num_examples // batch_size)
