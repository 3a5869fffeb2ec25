"""Trainer on Vertex AI, with the arguments and the `custom_config` keys of TFX's Trainer there.

Takes the place of `tfx.extensions.google_cloud_ai_platform.Trainer`::

    from generic_trainer import vertex

    trainer = vertex.Trainer(
        module_file="penguin_keras.py",
        examples=transform.outputs["transformed_examples"],
        custom_config={
            vertex.ENABLE_VERTEX_KEY: True,
            vertex.VERTEX_REGION_KEY: "us-central1",
            vertex.TRAINING_ARGS_KEY: {
                "project": "my-project",
                "job_spec": {
                    "worker_pool_specs": [
                        {
                            "machine_spec": {"machine_type": "n1-standard-4"},
                            "replica_count": 1,
                            "container_spec": {"image_uri": "registry.example/trainer:7"},
                        }
                    ]
                },
            },
        },
    )

1. TFX's Trainer runs its whole executor in the custom job, once on every replica. Here the job runs
   `run_fn`, by `launcher="vertex"`; the steps before and after it, such as the checks of the model,
   run where the orchestrator runs the step.
2. The image needs this package, which TFX's own image, its default, lacks: an image is required.
3. Worker pool 0 is the chief, pool 1 the workers, pool 2 the parameter servers, as on Vertex AI.
4. `run_fn` finds all of `custom_config`, as with TFX.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer.components import GenericTrainer
from generic_trainer.errors import ConfigurationError, raise_problems
from generic_trainer.launchers import Distribution, VertexOptions

__all__ = [
    "ENABLE_UCAIP_KEY",
    "ENABLE_VERTEX_KEY",
    "JOB_ID_KEY",
    "LABELS_KEY",
    "TRAINING_ARGS_KEY",
    "UCAIP_REGION_KEY",
    "VERTEX_CONTAINER_IMAGE_URI_KEY",
    "VERTEX_REGION_KEY",
    "Trainer",
    "distribution_of",
]

# The values are TFX's.
ENABLE_VERTEX_KEY = "ai_platform_enable_vertex"
VERTEX_REGION_KEY = "ai_platform_vertex_region"
TRAINING_ARGS_KEY = "ai_platform_training_args"
JOB_ID_KEY = "ai_platform_training_job_id"
LABELS_KEY = "ai_platform_training_labels"
# The image that serves the model, for Pusher and BulkInferrer: not that of the training.
VERTEX_CONTAINER_IMAGE_URI_KEY = "ai_platform_vertex_container_image_uri"
# Deprecated by TFX in favour of the first two.
ENABLE_UCAIP_KEY = "ai_platform_training_enable_ucaip"
UCAIP_REGION_KEY = "ai_platform_training_ucaip_region"

_POOLS = ("the chief", "workers", "parameter servers")
_logger = logging.getLogger(__name__)


class Trainer(GenericTrainer):
    """Trains a model on Vertex AI with the user's `run_fn` and publishes it; see the module."""

    def __init__(
        self,
        examples: Any = None,
        transformed_examples: Any = None,
        transform_graph: Any = None,
        schema: Any = None,
        base_model: Any = None,
        hyperparameters: Any = None,
        module_file: Any = None,
        run_fn: Any = None,
        train_args: Any = None,
        eval_args: Any = None,
        custom_config: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Constructs the component.

        Args:
            examples: this and the following as for `GenericTrainer`, in the order of TFX's.
            transformed_examples: deprecated, use `examples`.
            transform_graph: the TransformGraph that produced the examples.
            schema: the Schema of the examples.
            base_model: a Model to start from.
            hyperparameters: HyperParameters, such as a Tuner's best ones.
            module_file: path of a .py file with `run_fn(fn_args)`.
            run_fn: import path of such a function.
            train_args: splits and number of steps to train on.
            eval_args: splits and number of steps to evaluate on.
            custom_config: location of the training, with the keys of this module, and extra values
                for `run_fn`.
            **more: other arguments of `GenericTrainer`, except `distribution`, which is made of
                `custom_config`.

        Raises:
            ConfigurationError: arguments are wrong or missing; the message lists all of them.
        """
        if "distribution" in more:
            raise ConfigurationError(
                "vertex.Trainer makes the distribution of custom_config. To give another, use "
                "GenericTrainer(distribution=Distribution(launcher='vertex', "
                "vertex=VertexOptions(...)))."
            )
        super().__init__(
            examples=examples,
            transformed_examples=transformed_examples,
            transform_graph=transform_graph,
            schema=schema,
            base_model=base_model,
            hyperparameters=hyperparameters,
            module_file=module_file,
            run_fn=run_fn,
            train_args=train_args,
            eval_args=eval_args,
            custom_config=custom_config,
            distribution=distribution_of(custom_config),
            **more,
        )


def distribution_of(custom_config: Mapping[str, Any] | None) -> Distribution:
    """Returns the distribution for a `custom_config` of TFX's Trainer on Vertex AI.

    Raises:
        ConfigurationError: it does not ask for Vertex AI, or for a job that Vertex AI cannot run.
    """
    config = custom_config if isinstance(custom_config, Mapping) else {}
    raise_problems(ConfigurationError, "custom_config", [*_problems(config)])
    arguments = dict(config[TRAINING_ARGS_KEY])
    job = {name: value for name, value in arguments.items() if name != "project"}
    if not job.get("job_spec"):  # deprecated by TFX: the specification alone
        job = {"job_spec": job}
    if config.get(JOB_ID_KEY):
        job.setdefault("display_name", config[JOB_ID_KEY])
    pools = [dict(pool) for pool in job["job_spec"]["worker_pool_specs"]]
    counts = [pool.pop("replica_count", 1) for pool in pools] + [0, 0]
    if config.get(LABELS_KEY):
        _logger.warning(
            "%r is ignored, as by TFX: the labels of a custom job are %r['labels'].",
            LABELS_KEY,
            TRAINING_ARGS_KEY,
        )
    return Distribution(
        launcher="vertex",
        num_workers=counts[1] if counts[2] else 1 + counts[1],
        parameter_servers=counts[2],
        chief=len(pools) > 1,
        vertex=VertexOptions(
            image=pools[0]["container_spec"]["image_uri"],
            project=arguments["project"],
            region=_region(config),
            labels=job.pop("labels", {}),
            custom_job={**job, "job_spec": {**job["job_spec"], "worker_pool_specs": pools}},
        ),
    )


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    arguments = config.get(TRAINING_ARGS_KEY)
    if not config.get(ENABLE_VERTEX_KEY, config.get(ENABLE_UCAIP_KEY)):
        yield (
            f"{ENABLE_VERTEX_KEY!r} must be True: without it TFX trains on AI Platform, the "
            "service before Vertex AI, which Google has shut down"
        )
    if not isinstance(_region(config), str):
        yield f"{VERTEX_REGION_KEY!r} must be the region of Vertex AI, such as 'us-central1'"
    if not isinstance(arguments, Mapping):
        yield f"{TRAINING_ARGS_KEY!r} must be a dict, the CustomJob with its project"
        return
    if not isinstance(arguments.get("project"), str):
        yield f"{TRAINING_ARGS_KEY!r} must hold the Google Cloud project as 'project'"
    pools = (arguments.get("job_spec") or arguments).get("worker_pool_specs")
    if not isinstance(pools, Sequence) or not pools:
        pools = [{}]
    if len(pools) > len(_POOLS):
        known = ", ".join(_POOLS)
        yield f"expected at most {len(_POOLS)} worker pools ({known}), found {len(pools)}"
    for number, pool in enumerate(pools[: len(_POOLS)]):
        if not (pool.get("container_spec") or {}).get("image_uri"):
            yield (
                f"worker_pool_specs[{number}].container_spec.image_uri must name an image with "
                "generic-trainer in it: TFX's own, its default, has none"
            )
        count = pool.get("replica_count", 1)
        if not isinstance(count, int) or count < 1 or (number == 0 and count != 1):
            least = "1" if number == 0 else "at least 1"
            yield f"worker_pool_specs[{number}].replica_count must be {least}, found {count!r}"


def _region(config: Mapping[str, Any]) -> Any:
    return config.get(VERTEX_REGION_KEY, config.get(UCAIP_REGION_KEY))
