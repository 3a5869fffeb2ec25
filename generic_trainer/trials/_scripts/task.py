"""The job on the cluster: ``python -m generic_trainer.trials._scripts.task train.py ...``.

The script is loaded anew for each trial; the trial loop is that of every other experiment.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import runpy
import sys
import zipfile
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer.errors import ExportError
from generic_trainer.trials._run_fn import run_fn_from_trial
from generic_trainer.trials._scripts.loading import script_trial

# Environment variable of the job: JSON with the configuration and the directory for the results.
EXPERIMENT = "GENERIC_TRAINER_EXPERIMENT"
PACKAGE = "context.zip"  # in the job's working directory

_logger = logging.getLogger(__name__)


def run_experiment(command: Sequence[str], config: Mapping[str, Any], directory: str) -> None:
    """Runs the experiment of a script; one that was interrupted in `directory` goes on.

    Raises:
        ModuleFileError: the script trains nothing.
    """
    fn_args = SimpleNamespace(
        custom_config=dict(config),
        hyperparameters=None,
        schema_path=None,
        transform_graph_path=None,
        model_run_dir=os.path.join(directory, "model_run"),
        checkpoint_dir=os.path.join(directory, "checkpoints"),
        serving_model_dir=os.path.join(directory, "Format-Serving"),
    )
    gfile().makedirs(fn_args.model_run_dir)
    try:
        main = functools.partial(runpy.run_path, command[0], run_name="__main__")
        run_fn_from_trial(script_trial(main, command))(fn_args)
    except ExportError as error:  # a script need not have anything to serve
        _logger.warning("The experiment is finished; no model is exported: %s", error)


def main() -> None:
    """Unpacks the code and runs the script of the command line as the environment says."""
    logging.basicConfig(level=logging.INFO)
    with zipfile.ZipFile(PACKAGE) as package:
        package.extractall()
    sys.path.insert(0, os.getcwd())
    experiment = json.loads(os.environ[EXPERIMENT])
    run_experiment(sys.argv[1:], experiment["config"], experiment["directory"])


if __name__ == "__main__":
    main()
