"""Several trainers at once, in one metadata store and in one process."""

from pathlib import Path

import pytest

from tests import helpers
from tests.orchestrators import processes
from tests.orchestrators.small_pipeline import Store, run_local

# The exported model multiplies by `factor`, so that each tells whose it is.
SOURCE = """
def run_fn(fn_args):
    print("factor", fn_args.custom_config["factor"])
    wait_at_gate()
    export(fn_args.serving_model_dir, fn_args.custom_config["factor"])
"""


@pytest.mark.slow
def test_two_processes_share_a_metadata_store(examples: str, tmp_path: Path) -> None:
    module_file = helpers.write_module(tmp_path, processes.GATE + SOURCE)
    with processes.Gate() as gate:
        runs = [
            processes.start(
                run_factor,
                *(tmp_path, examples, module_file, factor),
                output_file=tmp_path / f"output-{factor}",
                gate=gate,
            )
            for factor in (3.0, 5.0)
        ]
        for run in runs:
            gate.wait_for(run)
    # All of them: where both have got the same execution, each fails because of the other.
    ended = [(run.exit_code(), run.output()) for run in runs]
    assert [code for code, _ in ended] == [0, 0], "\n\n".join(output for _, output in ended)
    models = [f"{model.uri}/Format-Serving" for model in Store(tmp_path).models()]
    assert sorted(helpers.scores_of(model, 1.0) for model in models) == [[3.0], [5.0]]


def run_factor(root: Path, examples: str, module_file: str, factor: float) -> None:
    run_local(root, examples, module_file=module_file, custom_config={"factor": factor})
