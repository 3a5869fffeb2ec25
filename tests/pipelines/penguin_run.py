"""One run of the penguin pipeline, as a user starts it, that many tests look at."""

import os
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from pipelines import run_local
from pipelines._results import RunResults, last_run

TRAIN_STEPS = 100


@dataclass(frozen=True)
class PenguinRun:
    """A finished run.

    Attributes:
        runs_dir: what `--runs-dir` was.
        output: everything that appeared in the terminal.
        results: what the metadata store holds.
    """

    runs_dir: Path
    output: str
    results: RunResults


def run_penguin(runs_dir: Path, main: Callable[[list[str]], int] = run_local.main) -> PenguinRun:
    """Runs the pipeline in this process."""
    arguments = ["--runs-dir", str(runs_dir), "--train-steps", str(TRAIN_STEPS)]
    exit_code, output = with_output(lambda: main(arguments))
    assert exit_code == 0, output
    results = last_run(str(runs_dir / "penguin" / "metadata.db"))
    return PenguinRun(runs_dir, output, results)


def with_output(call: Callable[[], int]) -> tuple[int, str]:
    """Returns what `call` returns, and what it writes to the file descriptors 1 and 2."""
    originals = (os.dup(1), os.dup(2))
    with tempfile.TemporaryFile("w+") as output:
        try:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            with (
                open(1, "w", buffering=1, closefd=False) as stdout,
                open(2, "w", buffering=1, closefd=False) as stderr,
                redirect_stdout(stdout),
                redirect_stderr(stderr),
            ):
                result = call()
        finally:
            for descriptor, original in zip((1, 2), originals, strict=True):
                os.dup2(original, descriptor)
                os.close(original)
        output.seek(0)
        return result, output.read()
