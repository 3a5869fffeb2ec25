"""What `tensorflow_estimator` imports and TensorFlow no longer has."""

from __future__ import annotations

from typing import Any, TypeVar

from generic_trainer.errors import ConfigurationError
from generic_trainer.estimator._tensorflow import tf

__all__ = ["estimator_export", "estimator_training", "tf"]

_T = TypeVar("_T")


class estimator_export:
    """Decorates nothing; the original entered what it decorates into TensorFlow's API listing."""

    def __init__(self, *names: str, v1: Any = None) -> None:
        pass

    def __call__(self, decorated: _T) -> _T:
        return decorated


class estimator_training:
    """In place of `tensorflow.python.distribute.estimator_training`, as it was for one worker.

    The original also ran estimators with a distribution strategy on several workers, by a
    coordinator that TensorFlow has removed.
    """

    @staticmethod
    def init_run_config(config: Any, tf_config: dict[str, Any]) -> None:
        """Takes the strategies of `RunConfig(experimental_distribute=...)`, then the cluster.

        Args:
            config: the RunConfig.
            tf_config: what the environment variable TF_CONFIG holds.

        Raises:
            ConfigurationError: the strategy shall span several workers.
        """
        if getattr(config._experimental_distribute, "remote_cluster", None):
            raise ConfigurationError(
                "RunConfig(experimental_distribute=...) has a remote_cluster, and TensorFlow has "
                "removed what trained an estimator on one: leave it out."
            )
        _take_experimental(config, "train_distribute")
        _take_experimental(config, "eval_distribute")
        workers = tf_config.get("cluster", {})
        if config.train_distribute and workers and "master" not in workers:
            raise ConfigurationError(
                "An estimator's train_distribute works on one worker in this TensorFlow, but "
                f"TF_CONFIG describes a cluster of {', '.join(sorted(workers))}. Leave "
                "train_distribute out, so that the workers train asynchronously with parameter "
                "servers, or train a Keras model in run_fn."
            )
        config._init_distributed_setting_from_environment_var(tf_config)
        config._maybe_overwrite_session_config_for_distributed_training()

    @staticmethod
    def should_run_distribute_coordinator(config: Any) -> bool:
        """There is no coordinator any more."""
        return False


def _take_experimental(config: Any, name: str) -> None:
    strategy = getattr(config._experimental_distribute, name, None)
    if strategy is None:
        return
    if getattr(config, name) is not None:
        raise ValueError(f"Give RunConfig either {name} or experimental_distribute.{name}.")
    setattr(config, f"_{name}", strategy)
