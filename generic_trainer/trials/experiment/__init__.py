"""`Experiment` and `learn_runner` of `tf.contrib.learn`, on today's TensorFlow.

::

    from generic_trainer.trials.experiment import Experiment, HParams, RunConfig, learn_runner

    def experiment_fn(run_config, hparams):
        return Experiment(make_estimator(run_config, hparams), train_input_fn, eval_input_fn,
                          train_steps=1000, export_strategies=[FinalExporter("m", receiver_fn)])

    learn_runner.run(experiment_fn, run_config=RunConfig(model_dir), schedule="train_and_evaluate",
                     hparams=HParams(rate=0.1))

As a module file of a pipeline::

    run_fn = run_fn_from_experiment(experiment_fn, HParams(rate=0.1))
"""

from generic_trainer.trials.experiment import contrib, learn_runner
from generic_trainer.trials.experiment._experiment import Experiment
from generic_trainer.trials.experiment._hparams import HParams
from generic_trainer.trials.experiment._learn import (
    ExportStrategy,
    MetricSpec,
    ModeKeys,
    RunConfig,
    make_export_strategy,
)
from generic_trainer.trials.experiment.learn_runner import run_fn_from_experiment

__all__ = [
    "Experiment",
    "ExportStrategy",
    "HParams",
    "MetricSpec",
    "ModeKeys",
    "RunConfig",
    "contrib",
    "learn_runner",
    "make_export_strategy",
    "run_fn_from_experiment",
]
