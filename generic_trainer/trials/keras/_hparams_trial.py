"""`KerasTrial`, as PEDL had it: methods take hyperparameters, and there is no context."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from generic_trainer.trials._trial import HparamsTrial
from generic_trainer.trials.keras._context import TFKerasTrialContext
from generic_trainer.trials.keras._trial import TFKerasTrial


class KerasTrial(HparamsTrial, TFKerasTrial):
    """A compiled Keras model, and a function of its module that returns the data.

    ::

        from generic_trainer.trials.keras import KerasTrial, data

        def make_data_loaders(experiment_config, hparams):
            size = hparams["batch_size"]
            return data.InMemorySequence(x, y, size), data.InMemorySequence(test_x, test_y, size)

        class DigitsTrial(KerasTrial):
            def build_model(self, hparams):
                model = tf.keras.Sequential([...])
                model.compile(tf.keras.optimizers.Adam(hparams["learning_rate"]), "mse")
                return model

    Source: the documentation of PEDL's Keras trials.
    """

    _data: Sequence[Any]

    @abc.abstractmethod
    def build_model(self, hparams: dict[str, Any]) -> Any:  # type: ignore[override]
        """Returns the model; one that is not compiled is with `optimizer()` and `loss()`."""

    def optimizer(self) -> Any:
        """Returns the optimizer of a model that is not compiled."""
        raise NotImplementedError("build_model returns a model that is not compiled")

    def loss(self) -> Any:
        """Returns the loss of a model that is not compiled."""
        raise NotImplementedError("build_model returns a model that is not compiled")

    def metrics(self) -> list[Any]:
        """Returns the metrics of a model that is not compiled."""
        return []

    def build_training_data_loader(self) -> Any:
        """Returns the first part of what `make_data_loaders` returns."""
        return self._data[0]

    def build_validation_data_loader(self) -> Any:
        """Returns the second part."""
        return self._data[1]

    @classmethod
    def of_context(cls, context: TFKerasTrialContext) -> Any:
        """Returns the trial, its data loaded."""
        loaded = cls.load_data(context.env.run)
        trial = cls(context.get_hparams())
        trial._data = [
            context.wrap_dataset(data) if isinstance(data, tf.data.Dataset) else data
            for data in loaded
        ]
        return trial

    def build_in(self, context: TFKerasTrialContext) -> None:
        """Builds the model, for a context to train."""
        model = self.build_model(context.get_hparams())
        if getattr(model, "optimizer", None) is None:
            model.compile(self.optimizer(), self.loss(), metrics=self.metrics())
        context.take_compiled(model)
