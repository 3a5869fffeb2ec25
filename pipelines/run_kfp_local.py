"""Runs a pipeline of KFP 2 in this process, without TFX: CSV → examples → train → push.

::

    pip install 'generic-trainer[kfp]'
    python -m pipelines.run_kfp_local --root runs/kfp

The model is pushed if its error on the evaluation split is small. The component `push` looks at it
itself, because the `kfp.local` of KFP 2.16 takes each `dsl.If` as false; a cluster does not.
The KFP 2.5 beside TFX 1.16 runs only single components locally.
"""

# No `from __future__ import annotations`: KFP wants the types themselves.
import argparse
import os
import sys
from collections.abc import Sequence

from kfp import dsl, local
from kfp.dsl import Dataset, Input, Metrics, Model, Output

from generic_trainer import ServingContract
from generic_trainer.cli import main as generic_trainer
from generic_trainer.kfp import train

MOST = 300.0  # mean absolute error, in thousands


@dsl.component
def take_examples(table: str, examples: Output[Dataset]) -> None:
    """Copies the rows that have all values."""
    with open(table) as source, open(examples.path, "w") as target:
        target.writelines(line for line in source if all(line.rstrip("\n").split(",")))


@dsl.component
def push(model: Input[Model], metrics: Input[Metrics], serving: str, most: float) -> str:
    """Copies a model into a new directory of versions, as TF Serving wants them, if it is good."""
    import os
    import shutil
    import time

    if metrics.metadata["val_mae"] > most:
        return "not pushed"
    target = os.path.join(serving, str(time.time_ns()))
    shutil.copytree(model.path, target)
    return target


def create_pipeline(module_file: str) -> dsl.base_component.BaseComponent:
    """Returns the pipeline around a module file."""

    @dsl.pipeline(name="houses")
    def houses(table: str, serving: str, train_steps: int = 100) -> None:
        taken = take_examples(table=table)
        trained = train(
            examples=taken.outputs["examples"],
            module_file=module_file,
            hyperparameters={"learning_rate": 0.03},
            train_steps=train_steps,
            eval_steps=2,
            contract=ServingContract(label_keys=("price",)),
        )
        push(
            model=trained.outputs["model"],
            metrics=trained.outputs["metrics"],
            serving=serving,
            most=MOST,
        )

    return houses


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it on the project that `generic-trainer init` writes; returns 0 if it succeeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", default="runs/kfp", help="directory of data, artifacts, models")
    parser.add_argument("--train-steps", type=int, default=100)
    options = parser.parse_args(argv)
    root = os.path.abspath(options.root)
    project = os.path.join(root, "houses")
    if not os.path.exists(project) and generic_trainer(["init", project]) != 0:
        return 1
    houses = create_pipeline(os.path.join(project, "trainer.py"))
    local.init(
        local.SubprocessRunner(use_venv=False), pipeline_root=os.path.join(root, "artifacts")
    )
    houses(
        table=os.path.join(project, "data", "houses.csv"),
        serving=os.path.join(root, "serving"),
        train_steps=options.train_steps,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
