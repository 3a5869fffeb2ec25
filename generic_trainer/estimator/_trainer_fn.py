"""Module files of TFX's first trainer, which define `trainer_fn`, as a trainer API.

They are run as TFX's estimator executor did:

1. `trainer_fn(trainer_fn_args, schema)` builds an estimator. `trainer_fn_args.serving_model_dir` is
   a folder inside the ModelRun, for checkpoints and event files; `warm_start_from` is another name
   of `base_model`, from TFX 0.x. If the module uses `tf1`, it runs in a graph.
2. `tf.estimator.train_and_evaluate` trains it and calls its exporter.
3. The chief copies the exporter's newest SavedModel to where the model is checked and published.
4. But no EvalSavedModel is written to `Format-TFMA`: TensorFlow Model Analysis, of every TFX that
   this package supports, neither writes nor reads them. The Evaluator scores the serving model.
"""

import ast
import logging
import os
from collections.abc import Callable, Collection, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from generic_trainer import estimator
from generic_trainer._core.texts import load_schema
from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.training import is_chief
from generic_trainer.user_code import checked_function

_NAME = "trainer_fn"
_EXPECTED = {"estimator": "Estimator", "train_spec": "TrainSpec", "eval_spec": "EvalSpec"}
_EVAL_RECEIVER = "eval_input_receiver_fn"

# Names of FnArgs that it had not then, so that a custom_config may have them.
_OURS = ("num_examples", "checkpoint_dir", "extra_inputs")
_NEWER = (*_OURS, "working_dir")

_logger = logging.getLogger(__name__)


class _TrainerFn:
    """A module with `trainer_fn` in place of `run_fn`; see `TrainerApi`."""

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        return _NAME in names

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], None] | None:
        if _NAME not in vars(module):
            return None
        return _run_fn_of(checked_function(module, _NAME, "trainer_fn_args", "schema"))


TRAINER_FN = _TrainerFn()


def _run_fn_of(trainer_fn: Callable[..., Any]) -> Callable[[Any], None]:
    """Returns the `run_fn` that does what TFX's estimator executor did with a `trainer_fn`.

    The schema is None where the trainer was given none. The `run_fn` raises:
        ModuleFileError: `trainer_fn` returned what cannot be trained or exported.
        ExportError: the exporter has written nothing.
    """

    def run_fn(fn_args: Any) -> None:
        schema = load_schema(fn_args.schema_path or None)
        with estimator.first_behavior(trainer_fn.__module__):
            spec = trainer_fn(_TrainerFnArgs(fn_args), schema)
        _check(spec)
        trained = spec["estimator"]
        evaluation = spec["eval_spec"]
        result = estimator.train_and_evaluate(trained, spec["train_spec"], evaluation)
        if not is_chief():
            return
        (exporter,) = evaluation.exporters
        if result and result[0] is None:  # a worker that was lost had trained to the end
            given = evaluation.input_fn, evaluation.steps, evaluation.hooks
            metrics = trained.evaluate(*given, name=evaluation.name)
            folder = os.path.join(trained.model_dir, "export", exporter.name)
            exporter.export(trained, folder, trained.latest_checkpoint(), metrics, True)
        estimator.copy_newest_export(trained, exporter, fn_args.serving_model_dir)
        if spec.get(_EVAL_RECEIVER):
            _logger.info(
                "%s is not used, and Format-TFMA not written: the Evaluator scores the serving "
                "model, by the signature that its eval_config names.",
                _EVAL_RECEIVER,
            )

    run_fn.user_function = _NAME  # type: ignore[attr-defined]  # for messages
    return run_fn


class _TrainerFnArgs(SimpleNamespace):
    """`FnArgs` as `trainer_fn` knows them, from when they were HParams of `tf.contrib`.

    The entries of `custom_config` are attributes too, and there is `get(name, default)`.
    """

    def __init__(self, fn_args: Any) -> None:
        config = fn_args.custom_config or {}
        newer = {name: config[name] for name in _NEWER if name in config}
        ours = {name: getattr(fn_args, name) for name in _OURS if hasattr(fn_args, name)}
        super().__init__(**{**config, **vars(fn_args), **ours, **newer})
        self.warm_start_from = fn_args.base_model or config.get("warm_start_from")
        # Checkpoints and event files go into the estimator's folder, and have no place in a model.
        for name in ("serving_model_dir", "eval_model_dir"):
            folder = os.path.basename(getattr(fn_args, name))
            setattr(self, name, os.path.join(fn_args.model_run_dir, folder))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def _check(spec: Any) -> None:
    if not isinstance(spec, Mapping):
        problems = [f"expected a dict with {', '.join(_EXPECTED)}, found {spec!r}."]
    else:
        problems = [
            f'expected a {kind} at ["{name}"], found {spec.get(name)!r}.'
            for name, kind in _EXPECTED.items()
            if not isinstance(spec.get(name), getattr(estimator.v1, kind))
        ]
    if not problems and len(spec["eval_spec"].exporters) != 1:
        names = [exporter.name for exporter in spec["eval_spec"].exporters]
        problems = [f"expected one exporter in the EvalSpec, to publish its model, found {names}."]
    raise_problems(ModuleFileError, "trainer_fn returned the wrong thing", problems)
