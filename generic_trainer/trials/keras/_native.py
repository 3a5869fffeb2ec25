"""`keras.init`: a Keras model that a script trains, without a trial class.

::

    from generic_trainer.trials.native import keras

    context = keras.init(config, local=True, test=True)
    model = context.wrap_model(make_model(context.get_hparam("units")))
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x_train, y_train, validation_data=(x_test, y_test))
"""

from __future__ import annotations

import contextlib

from generic_trainer.trials._context import NativeContext
from generic_trainer.trials._process import fit_to_devices
from generic_trainer.trials._scripts.start import Init, Start
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.keras._context import TFKerasContext
from generic_trainer.trials.keras._controller import TFKerasController
from generic_trainer.trials.keras._trial import seed_keras


class TFKerasNativeContext(TFKerasContext, NativeContext):
    """The context of a script.

    The wrapped model's `fit` and `fit_generator` train as the experiment configuration says, and
    return None: `epochs`, `steps_per_epoch` and `batch_size` are not used.

    Source: `determined.keras.TFKerasNativeContext` of Determined 0.12 and 0.13.
    """

    @classmethod
    def make(cls, run: TrialRun, start: Start, code: str | None) -> TFKerasNativeContext:
        """Returns the context of a script; see `Init`."""
        run, strategy = fit_to_devices(run)
        seed_keras(run.seed)
        context = cls(run)
        # The script builds its model between here and `fit`.
        scope = contextlib.ExitStack()
        if run.slots > 1:
            scope.enter_context(strategy.scope())

        def train() -> None:
            scope.close()
            call = context.train_config
            parts = (call.training_data, call.validation_data, call.callbacks)
            start(TFKerasController(context, run, *parts, strategy=strategy, code=code))

        context.on_fit(train)
        return context


init = Init(TFKerasNativeContext.make)
