"""What the runners of the penguin pipeline have in common: their options, and a run's frame."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines._console import StageConsole, stage_console

# Beam's default runner first tries to download another one from the internet.
BEAM_ON_THIS_MACHINE = ("--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",)
MODULE_FILES = Path(__file__).resolve().parent.parent / "module_files"


def parse_options(description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add(
        "--module-file",
        type=_existing_file,
        default=MODULE_FILES / "penguin_keras.py",
        help="Python file with preprocessing_fn and run_fn (default: %(default)s)",
    )
    add(
        "--runs-dir",
        type=Path,
        default=Path("runs"),
        help="folder for data, artifacts, metadata, log and models (default: %(default)s)",
    )
    add("--train-steps", type=int, default=200, help="training batches (default: %(default)s)")
    add("--tune", action="store_true", help="search hyperparameters first")
    add("--warm-start", action="store_true", help="start from the latest blessed model")
    add(
        "--cpu-devices",
        type=int,
        default=1,
        help="split the CPU into so many devices, to try a distribution strategy without GPUs",
    )
    add(
        "--distribution",
        default="{}",
        metavar="JSON",
        help="""where to train, such as '{"launcher": "ray", "num_workers": 2}'""",
    )
    return parser.parse_args(argv)


def _existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {path.resolve()}")
    return path


def run_penguin(make_runner: Callable[[], Any], options: argparse.Namespace) -> int:
    """Runs the pipeline and prints its summary.

    Args:
        make_runner: Makes a TFX runner; called after TFX may be imported.
        options: From `parse_options`.

    Returns:
        The exit status: 0 if the model was pushed, 1 if not.
    """
    folder = options.runs_dir.resolve() / "penguin"
    log_path = folder / "pipeline.log"
    print(f"Penguin pipeline in {folder}; everything TFX says is in {log_path.name} there.")
    try:
        with stage_console(log_path) as console:
            results, summary = _run(make_runner, options, folder, console)
    except Exception as error:
        print(f"\n{error}\n\nThe pipeline stopped here. The full log: {log_path}", file=sys.stderr)
        return 1
    print(f"\n{summary}")
    return 0 if results.pushed_to else 1


def _run(
    make_runner: Callable[[], Any],
    options: argparse.Namespace,
    folder: Path,
    console: StageConsole,
) -> tuple[Any, str]:
    console.start("importing TFX")
    from generic_trainer import Distribution
    from pipelines._results import last_run
    from pipelines._summary import summarize
    from pipelines.penguin import create_pipeline
    from pipelines.penguin_data import write_penguin_csv

    if options.cpu_devices > 1:
        _split_cpu(options.cpu_devices)
    console.finish("importing TFX")
    metadata_path = str(folder / "metadata.db")
    pipeline = create_pipeline(
        pipeline_root=str(folder / "artifacts"),
        data_root=str(write_penguin_csv(folder / "data").parent),
        module_file=str(options.module_file.resolve()),
        serving_dir=str(folder / "serving"),
        metadata_path=metadata_path,
        train_steps=options.train_steps,
        tune=options.tune,
        warm_start=options.warm_start,
        distribution=Distribution.from_json(options.distribution),
        beam_pipeline_args=BEAM_ON_THIS_MACHINE,
    )
    make_runner().run(pipeline)
    results = last_run(metadata_path)
    return results, summarize(results)


def _split_cpu(num_devices: int) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    device = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [device] * num_devices)
