"""`TensorFlowTrial`, the base class of users' trials that are TF1 graphs."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from generic_trainer.trials._trial import Trial, TrialRun
from generic_trainer.trials.tensorflow._controller import TensorFlowController


class TensorFlowTrial(Trial, abc.ABC):
    """A model as a TF1 graph.

    The module of a subclass also defines ``make_data_loaders(experiment_config, hparams)``, which
    returns the training and the validation data as batched `tf.data.Dataset`s of the same
    structure. It and the methods below are called within the trial's graph, each once per trial;
    on several slots `build_graph` and `optimizer` are called once for each, with its share of the
    batch.

    Source: the documentation of PEDL's TensorFlowTrial.
    """

    def __init__(self, hparams: dict[str, Any]) -> None:
        """Takes the trial's sample of the hyperparameters; a subclass need not call this."""
        self.hparams = hparams

    @abc.abstractmethod
    def build_graph(self, record: Any, is_training: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the graph for training and validation.

        Args:
            record: an element of either Dataset: nested symbolic tensors, each [N, ...].
            is_training: bool scalar, True in training steps.

        Returns:
            Name → tensor, for everything that may be a metric; must hold "loss".
        """

    @abc.abstractmethod
    def optimizer(self) -> tf.compat.v1.train.Optimizer:
        """Returns the TF1 optimizer that minimises "loss"; called after `build_graph`."""

    @abc.abstractmethod
    def validation_metrics(self) -> list[str]:
        """Returns names out of `build_graph`'s result."""

    def training_metrics(self) -> list[str]:
        """Returns names out of `build_graph`'s result; "loss" is always reported."""
        return []

    def session_config(self) -> tf.compat.v1.ConfigProto:
        """Returns the configuration of the session."""
        return tf.compat.v1.ConfigProto(allow_soft_placement=True)

    def training_counter(self) -> tf.Tensor:
        """Returns the number of batches trained so far, an int64 scalar, for learning rates."""
        return tf.compat.v1.train.get_or_create_global_step()

    @classmethod
    def open_controller(cls, run: TrialRun) -> TensorFlowController:
        """Builds the graph and restores it from the checkpoint, if there is one."""
        return TensorFlowController(cls, run)
