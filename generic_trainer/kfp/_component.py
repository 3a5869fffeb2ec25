"""The component: what a pipeline calls, and the function that KFP runs in a container."""

import base64
import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Optional

from kfp import dsl
from kfp.dsl import HTML, Artifact, Input, Metrics, Model, Output

from generic_trainer._core.files import read_whole
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._entry_points import may_define
from generic_trainer.launchers import Distribution
from generic_trainer.user_code import bundle_module_file
from generic_trainer.validation import ServingContract


def train(
    examples: Any,
    module_file: str,
    *,
    schema: Any = None,
    transform_graph: Any = None,
    base_model: Any = None,
    hyperparameters: Any = None,
    custom_config: Any = None,
    train_steps: Any = None,
    eval_steps: Any = None,
    distribution: Distribution | None = None,
    contract: ServingContract | None = None,
    run_root: str = "",
    base_image: str = f"python:{sys.version_info[0]}.{sys.version_info[1]}",
) -> dsl.PipelineTask:
    """Adds a task that trains with a module file, checks the export and publishes the model.

    The module file is packed when the pipeline is compiled, with what it imports from its own
    folder, and travels in the pipeline. A failed check fails the task.

    Args:
        examples: an artifact: a CSV file; a directory with one, or with train.csv and eval.csv; or
            a directory of TFRecords of tf.Examples as an ExampleGen writes it, with Split-train
            and Split-eval.
        module_file: Python file with `run_fn`, `trainer_fn` or a trial.
        schema: an artifact: `schema.pbtxt`, or a directory with it. That of CSV files is inferred.
        transform_graph: an artifact: the output of TFX's Transform.
        base_model: an artifact: a SavedModel to start from, and to compare with.
        hyperparameters: name → value, or a `keras_tuner.HyperParameters` config. This and the
            following four may be parameters of the pipeline or outputs of other tasks.
        custom_config: the dictionary `fn_args.custom_config`. Of one that is a parameter or an
            output, KFP may hand over whole numbers as floats.
        train_steps: `fn_args.train_steps`; None: one pass.
        eval_steps: `fn_args.eval_steps`; None: one pass.
        distribution: the place where training runs.
        contract: what the model's consumers require.
        run_root: a directory that outlives the container, mounted or remote, for checkpoints and
            failed exports: a retry goes on from there. "": in the container.
        base_image: an image with this package. The default has none: it is for `kfp.local`.

    Returns:
        The task. Its outputs are `model`, a SavedModel with facts of its manifest as metadata;
        `metrics`, the last values of the training; `report`, as HTML; `run`, a directory with log
        and report.

    Raises:
        ModuleFileError: the module file cannot be read or packed.
    """
    with ScratchFolder("kfp-") as folder:
        code = bundle_module_file(module_file, folder, may_define=may_define)
        packed = base64.b64encode(read_whole(str(code.bundle))).decode()
    artifacts = {"schema": schema, "transform_graph": transform_graph, "base_model": base_model}
    dictionaries = {"hyperparameters": hyperparameters, "custom_config": custom_config}
    given = {
        **artifacts,
        **{name: _as_text(value) for name, value in dictionaries.items()},
        "train_steps": train_steps,
        "eval_steps": eval_steps,
        "distribution": distribution and distribution.to_json(),
        "contract": contract and contract.to_json(),
    }
    omitted = {name for name, artifact in artifacts.items() if artifact is None}
    texts = {name for name in dictionaries if isinstance(given[name], str)}
    step = dsl.component(_step(omitted, texts), base_image=base_image)
    return step(
        examples=examples,
        module=code.module,
        user_code=packed,
        run_root=run_root,
        **{name: value for name, value in given.items() if value is not None},
    )


def _as_text(value: Any) -> Any:
    """Returns a dictionary as JSON: KFP has floats alone in its own. Others stay as they are."""
    if isinstance(value, Mapping):
        with contextlib.suppress(TypeError):  # of a value that KFP refuses with a reason
            return json.dumps(value)
    return value


def _step(omitted: set[str], texts: set[str]) -> Callable[..., None]:
    """Returns `train_step` without some artifacts, and with texts in place of dictionaries.

    KFP's local runner wants all artifacts of a component.
    """

    @functools.wraps(train_step)
    def step(**inputs: Any) -> None:
        train_step(**inputs)

    signature = inspect.signature(train_step)
    kept = [
        parameter.replace(annotation=Optional[str]) if name in texts else parameter
        for name, parameter in signature.parameters.items()
        if name not in omitted
    ]
    step.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return step


# KFP copies the source of this function into the pipeline, and reads its annotations there: it may
# use nothing else of this module. Steps that are not given are 0, because KFP's local runner takes
# no None for a number.
def train_step(
    examples: Input[Artifact],
    module: str,
    user_code: str,
    run_root: str,
    model: Output[Model],
    metrics: Output[Metrics],
    report: Output[HTML],
    run: Output[Artifact],
    schema: Optional[Input[Artifact]] = None,
    transform_graph: Optional[Input[Artifact]] = None,
    base_model: Optional[Input[Artifact]] = None,
    hyperparameters: Optional[dict] = None,
    custom_config: Optional[dict] = None,
    train_steps: int = 0,
    eval_steps: int = 0,
    distribution: Optional[str] = None,
    contract: Optional[str] = None,
) -> None:
    """Trains, checks the export and publishes the model."""
    given = dict(locals())
    from generic_trainer.kfp._step import run_step

    run_step(**given)
