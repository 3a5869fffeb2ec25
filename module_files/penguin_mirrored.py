"""Data-parallel training on the devices of one machine: `tf.distribute.MirroredStrategy`.

Trains on all GPUs. Where there are none, logical CPU devices stand in for them, so that the code
path can be tried anywhere. The CPU must be split before TensorFlow uses it, which in a pipeline
that runs in one process is long before this module: `python -m pipelines.run_local
--cpu-devices 2` does it in time.
"""

from __future__ import annotations

import tensorflow as tf
from penguin_features import preprocessing_fn
from penguin_model import build_model, train
from penguin_serving import export_for_serving
from tfx.components.trainer.fn_args_utils import FnArgs

__all__ = ["preprocessing_fn", "run_fn"]


def run_fn(fn_args: FnArgs) -> None:
    """Trains one replica per device and exports a model without a trace of the strategy."""
    strategy = tf.distribute.MirroredStrategy(_devices())
    print(f"Training on {strategy.num_replicas_in_sync} replicas.")
    with strategy.scope():
        model = build_model()
    train(model, fn_args)
    export_for_serving(model, fn_args)


def _devices() -> list[str]:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return [device.name for device in tf.config.list_logical_devices(kind)]
