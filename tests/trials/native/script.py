"""Trains one weight by `estimator.init`, with the arguments of the command line."""

import json
import sys

from generic_trainer.trials.native import estimator
from tests.trials.estimator.one_weight import OneWeight

CONFIG = {
    "description": "one weight",
    "hyperparameters": {"global_batch_size": 1, "rate": 0.05},
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}},
}


def train(context, trial_class=OneWeight):
    trial = trial_class(context)
    context.serving_input_receiver_fns.update(trial.build_serving_input_receiver_fns())
    specs = trial.build_train_spec(), trial.build_validation_spec()
    return context.train_and_evaluate(trial.build_estimator(), *specs)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    train(estimator.init({**CONFIG, **arguments.pop("config", {})}, **arguments))
