"""Record batches per second of TFX's factory and of GenericTrainer's, in examples.

    python -m benchmarks.bench_record_batches [--rows 200000] [--batch 256] [--repeats 3]

Both take turns in this process; the columns are 16, half of them numbers and half strings. `first`
decodes the files, `later` is another reading in the same process, shuffled or in order, and `again`
the first one of a later process, which finds the rows in the cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tfx_bsl.tfxio import tf_example_record
from tfx_bsl.tfxio.dataset_options import RecordBatchesOptions

from benchmarks import _figures
from benchmarks.bench_reader import _KINDS, _column_cache, _schema, _write
from generic_trainer.data import make_record_batch_factory


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    _figures.add_json_option(parser)
    arguments = parser.parse_args()
    schema = _schema(16, _KINDS["half"])
    in_order = RecordBatchesOptions(batch_size=arguments.batch, num_epochs=1, shuffle=False)
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        pattern = [_write(Path(folder), arguments.rows, schema)]

        def read(name: str, factory: Callable[..., Any], options: Any = in_order) -> None:
            start = time.perf_counter()
            rows = sum(batch.num_rows for batch in factory(pattern, options, schema))
            rates.setdefault(name, []).append(rows / (time.perf_counter() - start))

        for _ in range(arguments.repeats):
            read("TFX's", _tfx)
            with _column_cache(None):
                ours = make_record_batch_factory(_tfx)
                read("first", ours)
                read("later", ours)
                read("later, shuffled", ours, in_order._replace(shuffle=True))
                read("again", make_record_batch_factory(_tfx))
    reference = rates.pop("TFX's")
    print(f"TFX's: {statistics.median(reference):,.0f} examples/s")
    for name, taken in rates.items():
        ratio = statistics.median(taken) / statistics.median(reference)
        print(f"{name:16} {statistics.median(taken):>12,.0f} examples/s, {ratio:.1f} x")
    _figures.write(
        [
            _figures.compare(f"record batches, {name}", taken, "examples/s", "TFX's", reference)
            for name, taken in rates.items()
        ],
        arguments.json,
    )


def _tfx(file_pattern: list[str], options: Any, schema: Any) -> Any:
    record = tf_example_record.TFExampleRecord(
        file_pattern, schema=schema, telemetry_descriptors=["bench"]
    )
    return record.RecordBatches(options)


if __name__ == "__main__":
    main()
