"""A whole run: the checks before it, the training, the checks after it, and publishing."""

import logging
import os
from collections.abc import Sequence

from generic_trainer._core.texts import did_you_mean, load_schema
from generic_trainer._core.tfx_names import TRANSFORMED_SCHEMA
from generic_trainer._run import store
from generic_trainer._run.contract import derived_contract, features_of, rehearse
from generic_trainer._run.live_run import live_run
from generic_trainer._run.publish import check_export, publish, publish_kept_export
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers import Job, launch
from generic_trainer.tracking import Tracking, track
from generic_trainer.training import is_chief
from generic_trainer.validation import (
    Checker,
    ServingContract,
    ValidationReport,
    lint_eval_config,
    signer,
)

_logger = logging.getLogger(__name__)


def train_and_publish(job: Job, trackings: Sequence[Tracking] = ()) -> ValidationReport | None:
    """Trains, then publishes the export into the directory of the model.

    Log and export of a run that fails are kept; see `keep_failed_run`.

    Args:
        job: the run and the place to run it.
        trackings: the trackers that it is reported to.

    Returns:
        The report on the published model; None in workers, which publish nothing.

    Raises:
        ConfigurationError: the Evaluator would fail with the eval config, or the key of the
            signature cannot be used.
        GenericTrainerError: see `Launcher` and `publish`.
    """
    if not is_chief():
        launch(job)
        return None
    with store.own_staging(job.request):
        store.set_earlier_run_aside(job.request)
        try:
            with live_run(job.request.model_run_dir), track(job, trackings) as tracked:
                tracked.report = report = _train_and_publish(job)
            return report
        except Exception as error:
            store.keep_failed_run(job.request, error)
            raise


def _train_and_publish(job: Job) -> ValidationReport:
    request = job.request
    if request.sign_with:
        signer(request.sign_with)  # raises now for a key that cannot sign, not after the training
    contract = derived_contract(request)
    _check_eval_config(contract)
    _check_label_keys(contract)
    preload = ("tensorflow_model_analysis",) if contract.eval_config is not None else ()
    # The checks need a process with TensorFlow; it starts up while the model trains.
    with Checker(preload=preload) as checker:
        report = publish_kept_export(request, checker)
        if report is not None:
            return report
        rehearse(job, contract, checker)
        launch(job)
        files = None
        try:
            report = check_export(request, contract, checker)
            files = store.sizes_below(request.export_dir)  # now: publishing moves them one by one
            report = publish(request, request.export_dir, report)
        except Exception:
            store.record_export(job, files)
            raise
        store.delete_checkpoints(request.checkpoint_dir)
        return report


def _check_eval_config(contract: ServingContract) -> None:
    """Raises or logs, before any training, the mistakes of the eval config."""
    severity = contract.severities.get("eval_config")
    if contract.eval_config is None or severity == "skip":
        return
    graph = contract.transform_graph
    transformed = None if graph is None else os.path.join(graph, TRANSFORMED_SCHEMA)
    result = lint_eval_config(contract.eval_config, contract.schema, transformed)
    if result.status == "fail" and severity != "warn":
        raise ConfigurationError(
            "The Evaluator would fail with this eval_config, or go wrong: "
            f"{result.message} → {result.remedy}"
        )
    if result.status in ("fail", "warn"):
        _logger.warning("eval_config: %s → %s", result.message, result.remedy)


def _check_label_keys(contract: ServingContract) -> None:
    """Raises, before any training, for a label that is not a feature of the examples."""
    if not contract.label_keys or contract.schema is None or "without_label" in contract.severities:
        return
    features = {feature.name for feature in load_schema(contract.schema).feature}
    if not features.issuperset(contract.label_keys):  # or the schema is incomplete
        features |= features_of(contract.examples or ()).keys()
    problems = [
        f"no feature {label!r} in the schema or the examples{did_you_mean(label, features)}"
        for label in contract.label_keys
        if label not in features
    ]
    raise_problems(ConfigurationError, "label_keys of the contract", problems)
