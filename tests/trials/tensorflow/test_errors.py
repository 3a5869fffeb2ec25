"""What is wrong with a trial is said, with what to do."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from generic_trainer.errors import ConfigurationError, ModuleFileError
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


class NoLoss(OneWeight):
    def build_graph(self, record, is_training):
        outputs = super().build_graph(record, is_training)
        del outputs["loss"]
        return outputs


def test_metrics_that_the_graph_does_not_have():
    with pytest.raises(ConfigurationError) as caught:
        UnknownMetrics.open_controller(RUN)
    message = str(caught.value)
    assert "validation_metrics names 'accuracy'" in message
    assert "training_metrics names 'speed'" in message
    assert "always reported" in message


def test_the_metric_of_the_searcher_is_checked_before_training():
    searcher = {"metric": "los", "max_length": {"batches": 1}}
    with pytest.raises(ConfigurationError, match=r"'los' is not among .*did you mean 'loss'"):
        OneWeight.open_controller(
            dataclasses.replace(RUN, config={**RUN.config, "searcher": searcher})
        )


def test_a_graph_without_a_loss():
    with pytest.raises(ModuleFileError, match="key 'loss'"):
        NoLoss.open_controller(RUN)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda data: data, "two tf.data.Datasets"),
        (lambda data: (data, [1, 2]), "two tf.data.Datasets"),
        (lambda data: (data, data.map(lambda r: r["x"])), "same structure"),
        (lambda data: (data, data.map(lambda r: {**r, "x": tf.cast(r["x"], tf.int32)})), "same"),
    ],
)
def test_loaders_that_return_something_else(monkeypatch, made, message):
    original = one_weight.make_data_loaders
    monkeypatch.setattr(
        one_weight, "make_data_loaders", lambda *arguments: made(original(*arguments)[0])
    )

    class Here(OneWeight):
        __module__ = one_weight.__name__

    with pytest.raises(ModuleFileError, match=message):
        Here.open_controller(RUN)


@pytest.mark.parametrize(("empty", "method"), [(0, "train"), (1, "validate")])
def test_empty_data(monkeypatch, empty, method):
    original = one_weight.make_data_loaders

    def loaders(*arguments):
        made = list(original(*arguments))
        made[empty] = made[empty].take(0)
        return tuple(made)

    monkeypatch.setattr(one_weight, "make_data_loaders", loaders)
    controller = OneWeight.open_controller(RUN)
    with pytest.raises(ModuleFileError, match="has no batch"):
        controller.train(1) if method == "train" else controller.validate()


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
