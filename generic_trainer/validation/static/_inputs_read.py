"""Can what the contract refers to be read?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.errors import DataError
from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, skip

__all__ = ["inputs_read"]

_SOURCES = ("records", "schema", "eval_config")


@check("inputs_read")
def inputs_read(model: ModelUnderTest) -> Iterator[Finding]:
    """The contract's examples, schema and eval config can be read."""
    contract = model.contract
    if contract.examples is None and contract.schema is None and contract.eval_config is None:
        yield skip("the contract names no examples, schema or eval config")
        return
    for source in _SOURCES:
        try:
            getattr(model, source)
        except DataError as error:
            yield fail(str(error), "correct the contract; nothing is said about the model here")
    yield from _malformed(model)


def _malformed(model: ModelUnderTest) -> Iterator[Finding]:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        for record in model.records:
            tf.train.Example.FromString(record)
        if model.records:
            yield note(f"{len(model.records)} examples read")
    except DecodeError:
        yield fail(
            "the contract's examples are not serialized tf.Examples",
            "point the contract at the records that ExampleGen or Transform wrote",
        )
    except DataError:
        return  # told already
