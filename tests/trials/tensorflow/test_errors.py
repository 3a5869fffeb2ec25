"""What is wrong with a trial is said, with what to do."""

import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from generic_trainer.errors import ConfigurationError, ExportError, ModuleFileError
from generic_trainer.trials import get_experiment_config, run_fn_from_trial
from generic_trainer.trials._trial import TrialRun
from generic_trainer.user_code import bundle_module_file, user_function
from tests.trials.tensorflow import one_weight
from tests.trials.tensorflow.one_weight import OneWeight
from tests.trials.tensorflow.one_weight import make_data_loaders as make_data_loaders  # of trials

RUN = TrialRun(trial_id=1, config={"data": {}}, hparams={}, seed=0)


class UnknownMetrics(OneWeight):
    def validation_metrics(self):
        return ["accuracy"]

    def training_metrics(self):
        return ["loss", "speed"]


class NoPrediction(OneWeight):
    def build_graph(self, record, is_training):
        w = tf.get_variable("w", [])
        return {"loss": w * tf.reduce_mean(record["x"] - record["label"])}


class NoLoss(OneWeight):
    def build_graph(self, record, is_training):
        return {"w": super().build_graph(record, is_training)["w"]}


def test_metrics_that_the_graph_does_not_have():
    problems = "(?s)training_metrics names 'speed'.*validation_metrics names 'accuracy'.*always rep"
    with pytest.raises(ConfigurationError, match=problems):
        UnknownMetrics.open_controller(RUN)


def test_the_metric_of_the_searcher_is_checked_before_training():
    config = {**RUN.config, "searcher": {"metric": "los", "max_length": {"batches": 1}}}
    with pytest.raises(ConfigurationError, match=r"'los' is not among .*did you mean 'loss'"):
        OneWeight.open_controller(dataclasses.replace(RUN, config=config))


def test_a_graph_without_predictions():
    with pytest.raises(ExportError, match="Return it from build_graph"):
        NoPrediction.open_controller(RUN)


def test_a_graph_without_a_loss():
    with pytest.raises(ModuleFileError, match="key 'loss'"):
        NoLoss.open_controller(RUN)


@pytest.fixture
def change_loaders(monkeypatch):
    """Returns a function that changes what `make_data_loaders` of the trial returns."""
    original = one_weight.make_data_loaders

    def change(changed):
        changed_loaders = lambda *arguments: changed(*original(*arguments))  # noqa: E731
        monkeypatch.setattr(one_weight, "make_data_loaders", changed_loaders)

    return change


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda data, _: data, "two tf.data.Datasets"),
        (lambda data, _: (data, [1, 2]), "two tf.data.Datasets"),
        (lambda data, _: (data, data.repeat()), "repeats forever"),
        (lambda data, _: (data, data.map(lambda r: r["x"])), "same structure"),
        (lambda data, _: (data, data.map(lambda r: {**r, "x": tf.cast(r["x"], "int32")})), "same"),
        (lambda data, _: (data, data.map(lambda r: {**r, "x": r["x"][:, :, None]})), "same"),
    ],
)
def test_loaders_that_return_something_else(change_loaders, changed, message):
    change_loaders(changed)
    with pytest.raises(ModuleFileError, match=message):
        OneWeight.open_controller(RUN)


@pytest.mark.parametrize(
    ("changed", "work"),
    [
        (lambda training, validation: (training.take(0), validation), lambda c: c.train(1)),
        (lambda training, validation: (training, validation.take(0)), lambda c: c.validate()),
    ],
)
def test_empty_data(change_loaders, changed, work):
    change_loaders(changed)
    controller = OneWeight.open_controller(RUN)
    with pytest.raises(ModuleFileError, match="has no batch"):
        work(controller)


def test_a_module_without_loaders():
    class Lonely(OneWeight):
        __module__ = "json"

    with pytest.raises(ModuleFileError, match=r"must also define make_data_loaders"):
        Lonely.open_controller(RUN)


def test_loaders_may_be_imported_beside_the_trial(tmp_path):
    (tmp_path / "weight_trial.py").write_text(
        "from tests.trials.tensorflow.one_weight import OneWeight\n\n\n"
        "class Imported(OneWeight):\n    pass\n"
    )
    (tmp_path / "entry.py").write_text(
        "from tests.trials.tensorflow.one_weight import make_data_loaders\n"
        "from weight_trial import Imported\n\n\n"
        "def run_fn(run):\n    return Imported.open_controller(run)\n"
    )
    code = bundle_module_file(str(tmp_path / "entry.py"), str(tmp_path / "bundles"))
    with user_function(code) as run_fn:
        assert run_fn(RUN).train(1)["loss"] == pytest.approx(4)


def test_only_trial_classes_are_taken():
    with pytest.raises(ConfigurationError, match="takes a class"):
        run_fn_from_trial(dict)


def test_nothing_to_ask_outside_of_a_trial():
    with pytest.raises(ConfigurationError, match="only while a trial runs"):
        get_experiment_config()
