"""The names that trial files import, and that they cost nothing before they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = {
    "generic_trainer": {"estimator"},
    "generic_trainer.trials": {
        *("Categorical", "Constant", "Double", "Integer", "Log", "run_fn_from_trial"),
        *("estimator", "experiment", "experimental", "keras", "native", "tensorflow"),
    },
    "generic_trainer.trials.estimator": {
        *("EstimatorContext", "EstimatorExperimentalContext", "EstimatorNativeContext"),
        *("EstimatorTrial", "EstimatorTrialContext", "MetricReducer", "RunHook"),
        "ServingInputReceiverFn",
    },
    "generic_trainer.trials.experiment": {
        *("Experiment", "HParams", "RunConfig", "learn_runner", "run_fn_from_experiment"),
    },
    "generic_trainer.trials.native": {
        *("InvalidExperimentException", "Mode", "StopLoadingImplementation"),
        *("estimator", "experimental", "keras"),
    },
    "generic_trainer.trials.native.estimator": {"EstimatorNativeContext", "init"},
    "generic_trainer.trials.native.keras": {"TFKerasNativeContext", "init"},
    "generic_trainer.trials.native.experimental": {
        *("Mode", "create", "create_trial_instance"),
        *("Categorical", "Constant", "Double", "Integer", "Log"),
    },
}


@pytest.mark.parametrize("module", NAMES)
def test_names_are_there(module):
    imported = __import__(module, fromlist=["*"])
    assert NAMES[module] <= set(dir(imported))
    for name in NAMES[module]:
        assert getattr(imported, name) is not None


def test_importing_the_rooms_does_not_import_tensorflow():
    packages = ", ".join(name for name in NAMES if name.count(".") < 3)
    program = f"import sys, {packages}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
