"""What a `TFKerasTrial` is given: its configuration, and what wraps model, data and optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer.trials._context import TrialContext
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.errors import CheckFailedError
from generic_trainer.trials.keras._recorded import FitCall, Recorded

__all__ = ["FitOptions", "TFKerasContext", "TFKerasExperimentalContext", "TFKerasTrialContext"]

_UNCHANGED: Any = object()


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """See `TFKerasContext.configure_fit`."""

    verbose: Any = True
    class_weight: Mapping[int, float] | None = None
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    shuffle: bool = False
    validation_steps: int | None = None


class TFKerasExperimentalContext(DatasetCache):
    """What was experimental in Determined: cached datasets."""


class TFKerasContext(TrialContext):
    """What Keras models are trained through.

    Attributes:
        experimental: `cache_train_dataset` and `cache_validation_dataset`.
        fit_options: as `configure_fit` has set them.
        fit_call: what the wrapped model's `fit` was called with.
        optimizers: those that were wrapped.
    """

    def __init__(self, run: TrialRun, *, managed_training: bool = True) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(run, managed_training=managed_training)
        self.experimental = TFKerasExperimentalContext(
            run, self._batch_sizes, managed_training=managed_training
        )
        self.fit_options = FitOptions()
        self.fit_call: FitCall | None = None
        self.optimizers: list[Any] = []
        self._train: Callable[[], None] | None = None
        self._recorded: Recorded | None = None
        self._has_dataset = False

    @property
    def model(self) -> Any:
        """The model that was wrapped; None before."""
        return self._recorded and self._recorded.model

    def wrap_model(self, model: Any) -> Any:
        """Returns the model, whose `compile` and `fit` are now noted instead of carried out.

        Call its `compile` afterwards: the harness compiles it as it was told to, and trains it.

        Args:
            model: a Keras model, not compiled yet.
        """
        if not self._managed_training:
            return model
        self._recorded = Recorded(model, self._fitted)
        return model

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Returns the data as they are; a Dataset that is trained or validated on must be wrapped.

        Args:
            dataset: a `tf.data.Dataset`, batched by the batch size per slot.
            shard_dataset: without effect: one process reads the data of all slots.
        """
        self._has_dataset = True
        return dataset

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer as it is, and has its state kept in checkpoints.

        Needed only for optimizers that `compile` is not given as `optimizer`, such as a GAN's.
        """
        if self._managed_training:
            self.optimizers.append(optimizer)
        return optimizer

    def configure_fit(
        self,
        verbose: Any = None,
        class_weight: Mapping[int, float] | None = _UNCHANGED,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        shuffle: bool | None = None,
        validation_steps: int | None = _UNCHANGED,
    ) -> None:
        """Says how to train; what is not given stays as it was.

        Args:
            verbose: passed on to callbacks.
            class_weight: class → weight of its records in training.
            workers: threads or processes that read a Keras Sequence; 0 is the training thread.
            use_multiprocessing: whether they are processes.
            max_queue_size: batches that they read ahead.
            shuffle: whether to train on the batches of arrays and Sequences in an order that is
                drawn for each epoch; a Dataset has a `shuffle` of its own.
            validation_steps: batches of a Dataset that are validated on; None is all.
        """
        given = {
            "verbose": verbose,
            "workers": workers,
            "use_multiprocessing": use_multiprocessing,
            "max_queue_size": max_queue_size,
            "shuffle": shuffle,
        }
        may_be_none = {"class_weight": class_weight, "validation_steps": validation_steps}
        changes = {
            **{name: value for name, value in given.items() if value is not None},
            **{name: value for name, value in may_be_none.items() if value is not _UNCHANGED},
        }
        self.fit_options = dataclasses.replace(self.fit_options, **changes)

    def on_fit(self, train: Callable[[], None]) -> None:
        """Has `fit` of the wrapped model call a function, once it has noted its arguments."""
        self._train = train

    def check_dataset(self) -> None:
        """Raises `CheckFailedError` if no dataset was wrapped or cached."""
        if not (self._has_dataset or self.experimental.is_used):
            raise CheckFailedError(
                "Please pass your datasets (train and test) into `context.wrap_dataset(dataset)` "
                "right after creating them, or cache them with `context.experimental`."
            )

    def compile_model(self) -> Any:
        """Compiles the model as the user has said, and returns it.

        Raises:
            CheckFailedError: no model was wrapped, or not compiled, or there is no optimizer.
        """
        if self._recorded is None:
            raise CheckFailedError("Please call wrap_model(...).")
        if not self._recorded.is_compiled:
            raise CheckFailedError(
                "Please call model.compile(...). A model must be wrapped first and then compiled."
            )
        model = self._recorded.compile_model()
        if not self.optimizers and getattr(model, "optimizer", None) is not None:
            self.optimizers = [model.optimizer]
        if not self.optimizers:
            raise CheckFailedError(
                "Please pass your optimizer into `context.wrap_optimizer(optimizer)`, or to "
                "model.compile(optimizer=...)."
            )
        return model

    def _fitted(self, call: FitCall) -> None:
        self.fit_call = call
        self.configure_fit(**call.options)
        if self._train is not None:
            self._train()


class TFKerasTrialContext(TFKerasContext):
    """The context of a `TFKerasTrial`.

    Source: `determined.keras.TFKerasTrialContext` of Determined 0.12 and 0.13.
    """
