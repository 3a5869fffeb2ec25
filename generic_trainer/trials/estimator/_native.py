"""`estimator.init`: an estimator that a script trains, without a trial class.

::

    from generic_trainer.trials.native import estimator

    context = estimator.init(config, local=True, test=True)
    optimizer = context.wrap_optimizer(make_optimizer(context.get_hparam("learning_rate")))
    context.train_and_evaluate(make_estimator(optimizer), train_spec, eval_spec)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generic_trainer import estimator as tf_estimator
from generic_trainer.trials._context import NativeContext
from generic_trainer.trials._process import fit_to_devices
from generic_trainer.trials._scripts.start import Init, Start
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._context import EstimatorContext
from generic_trainer.trials.estimator._controller import EstimatorController


class EstimatorNativeContext(EstimatorContext, NativeContext):
    """The context of a script.

    Attributes:
        serving_input_receiver_fns: name → serving input receiver function; empty at first.

    Source: `determined.estimator.EstimatorNativeContext` of Determined 0.12 and 0.13.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(*args, **kwargs)
        self.serving_input_receiver_fns: dict[str, Callable[..., Any]] = {}
        self._start: Start | None = None
        self._options: dict[str, Any] = {}

    def on_train(self, start: Start, **options: Any) -> None:
        """Has `train_and_evaluate` call a function with what it is to train.

        Args:
            start: takes the trial, ready to be trained.
            **options: keyword arguments of `EstimatorController`.
        """
        self._start, self._options = start, options

    def train_and_evaluate(self, estimator: Any, train_spec: Any, eval_spec: Any) -> None:
        """Trains as the experiment configuration says; see `EstimatorTrial` for the arguments."""
        if self._start is None:
            tf_estimator.train_and_evaluate(estimator, train_spec, eval_spec)
            return
        parts = (estimator, train_spec, eval_spec, self.serving_input_receiver_fns)
        self._start(EstimatorController(self, self._run, *parts, **self._options))

    @classmethod
    def make(cls, run: TrialRun, start: Start, code: str | None) -> EstimatorNativeContext:
        """Returns the context of a script; see `Init`."""
        run, strategy = fit_to_devices(run, is_graph=True)
        context = cls(run)
        context.on_train(start, strategy=strategy if run.slots_here > 1 else None, code=code)
        return context


init = Init(EstimatorNativeContext.make)
