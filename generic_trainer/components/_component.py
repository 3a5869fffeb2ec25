"""The pipeline component, with the arguments of TFX's own Trainer."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec, ExecutorSpec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.proto import trainer_pb2
from tfx.types import standard_artifacts
from tfx.utils import json_utils, proto_utils

from generic_trainer._core import tfx_names as keys
from generic_trainer.components._arguments import (
    PER_RUN_VALUES,
    GenericTrainerSpec,
    check_arguments,
    spec_with_extra_inputs,
)
from generic_trainer.components._compile import (
    bundle_user_code,
    is_of_tfx,
    raw_examples,
    same_inputs,
    step_resources,
    warn_of_unknown_consumers,
    with_encode_hook,
)
from generic_trainer.components._views import register_views
from generic_trainer.executors import GenericTrainerExecutor
from generic_trainer.launchers import Distribution
from generic_trainer.tracking import Tracking, trackings_to_json
from generic_trainer.validation import ServingContract

_logger = logging.getLogger(__name__)


class GenericTrainer(BaseComponent):
    """Trains a model with the user's `run_fn` and publishes it.

    Takes the place of `tfx.components.Trainer`, with the same arguments and the same module files::

        trainer = GenericTrainer(
            module_file="penguin_keras.py",
            examples=transform.outputs["transformed_examples"],
            transform_graph=transform.outputs["transform_graph"],
            schema=schema_gen.outputs["schema"],
            train_args=proto.TrainArgs(num_steps=1000),
            eval_args=proto.EvalArgs(num_steps=50),
        )

    Component `outputs`:
        - `model`: a channel of `standard_artifacts.Model`, the exported model.
        - `model_run`: a channel of `standard_artifacts.ModelRun`: event files, log, report.
        - `infra_blessing`: a channel of `standard_artifacts.InfraBlessing`, which Pusher takes
          instead of an InfraValidator's.
    """

    SPEC_CLASS = GenericTrainerSpec
    EXECUTOR_SPEC = ExecutorClassSpec(GenericTrainerExecutor)

    executor_spec: Any

    def __init__(
        self,
        examples: types.BaseChannel | None = None,
        transformed_examples: types.BaseChannel | None = None,
        transform_graph: types.BaseChannel | None = None,
        schema: types.BaseChannel | None = None,
        base_model: types.BaseChannel | None = None,
        hyperparameters: types.BaseChannel | None = None,
        module_file: str | RuntimeParameter | None = None,
        run_fn: str | RuntimeParameter | None = None,
        train_args: trainer_pb2.TrainArgs | RuntimeParameter | None = None,
        eval_args: trainer_pb2.EvalArgs | RuntimeParameter | None = None,
        custom_config: dict[str, Any] | RuntimeParameter | None = None,
        custom_executor_spec: ExecutorSpec | None = None,
        statistics: types.BaseChannel | None = None,
        extra_inputs: Mapping[str, types.BaseChannel] | None = None,
        eval_config: Any = None,
        contract: ServingContract | None = None,
        distribution: Distribution | None = None,
        tracking: Tracking | str | Sequence[Tracking | str] | None = None,
        sign_with: str | None = None,
    ) -> None:
        """Constructs the component.

        The arguments of TFX 1.16's Trainer come first, in its order.

        Args:
            examples: Examples to train and evaluate on, raw or transformed.
            transformed_examples: deprecated, use `examples`.
            transform_graph: the TransformGraph that produced the examples.
            schema: the Schema of the examples; a transform graph carries one as well.
            base_model: a Model to start from; `fn_args.base_model` is the SavedModel's directory.
            hyperparameters: HyperParameters, such as a Tuner's best ones.
            module_file: path of a .py file with `run_fn(fn_args)`, local or remote. It travels
                with the files that it imports from its own folder. Exactly one of `module_file` and
                `run_fn` must be given.
            run_fn: import path "package.module.function" of such a function.
            train_args: splits and number of steps to train on; by default the split `train`.
            eval_args: splits and number of steps to evaluate on; by default the split `eval`.
            custom_config: extra values for `run_fn`, passed as `fn_args.custom_config`. Must be
                JSON-serialisable.
            custom_executor_spec: deprecated, runs another executor; TFX's own Trainer executors,
                which pipelines named here until TFX 1.0, mean this component's.
            statistics: ExampleStatistics of the examples; `fn_args.num_examples[split]` comes
                from them, and the checks of the export try the values in them.
            extra_inputs: further inputs by name; their artifacts' URIs arrive as the list
                `fn_args.extra_inputs[name]`.
            eval_config: the `tfma.EvalConfig` of the Evaluator downstream. Its errors are reported
                before training, and it is tried on the exported model.
            contract: requirements of the exported model before it is published, beyond being a
                SavedModel that works.
            distribution: number, resources and launcher of the workers; by default training runs
                in the executor's process. It is an execution property: a step with another one is
                not taken from the cache. KubeflowV2DagRunner gives the step the resources of the
                workers that run inside it.
            tracking: experiment trackers that the run is logged to: `Tracking(...)`, a string such
                as "mlflow:http://host:5000", or several. A failing tracker is a warning. It is an
                execution property too.
            sign_with: path of the private key, on the machine of the executor, that signs the
                published model; `generic-trainer verify` verifies it. The pipeline and its
                metadata contain the path alone. It is an execution property too.

        Raises:
            ConfigurationError: arguments are wrong or missing; the message lists all of them.
        """
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        check_arguments(arguments)
        _warn_of_deprecated(arguments)
        if is_of_tfx(custom_executor_spec):
            custom_executor_spec = None
        self._module_file = module_file
        self._run_fn = run_fn
        self._distribution = distribution
        self._offers_resources = False
        extra_inputs = extra_inputs or {}
        inputs = {
            keys.EXAMPLES: examples if examples is not None else transformed_examples,
            keys.TRANSFORM_GRAPH: transform_graph,
            keys.SCHEMA: schema,
            keys.BASE_MODEL: base_model,
            keys.HYPERPARAMETERS: hyperparameters,
            keys.STATISTICS: statistics,
            **{keys.EXTRA_INPUT_PREFIX + name: channel for name, channel in extra_inputs.items()},
        }
        inputs[keys.RAW_EXAMPLES] = raw_examples(transform_graph, inputs.values())
        same = same_inputs(inputs)
        executor_class = getattr(custom_executor_spec or self.EXECUTOR_SPEC, "executor_class", None)
        if executor_class is not GenericTrainerExecutor:
            # Another executor, or a class of the user's, would miss the user's own inputs.
            same = {name: given for name, given in same.items() if name == keys.RAW_EXAMPLES}
        spec = spec_with_extra_inputs(extra_inputs)(
            **{name: None if name in same else channel for name, channel in inputs.items()},
            same_inputs=json.dumps(same, sort_keys=True) if same else None,
            train_args=train_args or trainer_pb2.TrainArgs(),
            eval_args=eval_args or trainer_pb2.EvalArgs(),
            module_file=module_file,
            run_fn=run_fn,
            custom_config=custom_config
            if isinstance(custom_config, PER_RUN_VALUES)
            else json_utils.dumps(custom_config),
            contract=contract.to_json() if contract else None,
            eval_config=proto_utils.proto_to_json(eval_config) if eval_config else None,
            distribution=distribution.to_json() if distribution else None,
            tracking=trackings_to_json(tracking),
            sign_with=sign_with,
            model=types.Channel(type=standard_artifacts.Model),
            model_run=types.Channel(type=standard_artifacts.ModelRun),
            infra_blessing=types.Channel(type=standard_artifacts.InfraBlessing),
        )
        super().__init__(spec=spec, custom_executor_spec=custom_executor_spec)
        register_views()
        if self._reads_bundles():
            self.executor_spec = with_encode_hook(self.executor_spec, self._withdraw_resources)
        else:
            from tfx.components.util import udf_utils

            # Another executor expects the wheel of TFX's own executors.
            if udf_utils.should_package_user_modules():
                udf_utils.add_user_module_dependency(self, keys.MODULE_FILE, keys.MODULE_PATH)

    @property
    def platform_config(self) -> Any:
        """The setting of `with_platform_config`, or the step's needs; see `step_resources`."""
        if self._platform_config is None and self._offers_resources:
            return step_resources(self._distribution or Distribution())
        return self._platform_config

    @platform_config.setter
    def platform_config(self, config: Any) -> None:
        self._platform_config = config

    def _resolve_pip_dependencies(self, pipeline_root: str) -> None:
        # TFX calls this whenever a pipeline is compiled and before each run in a notebook: the
        # only moments when the pipeline root is known and the user's files are available.
        super()._resolve_pip_dependencies(pipeline_root)
        if self._reads_bundles():
            contract = self.spec.exec_properties.get(keys.CONTRACT)
            warn_of_unknown_consumers(self.downstream_nodes, contract)
            code = bundle_user_code(self._module_file, self._run_fn, pipeline_root)
            self.spec.exec_properties.update(code)
            self._offers_resources = True

    def _withdraw_resources(self) -> None:
        self._offers_resources = False

    def _reads_bundles(self) -> bool:
        executor_class = getattr(self.executor_spec, "executor_class", None)
        return executor_class is not None and issubclass(executor_class, GenericTrainerExecutor)


# The type of its executions in the metadata store, which must not name a private module.
GenericTrainer.__module__ = "generic_trainer.components"


def _warn_of_deprecated(arguments: Mapping[str, Any]) -> None:
    if is_of_tfx(arguments["custom_executor_spec"]):
        _logger.warning(
            "`custom_executor_spec` names the executor of TFX's Trainer: GenericTrainer runs its "
            "own, which does the same and checks the model. Leave it out."
        )
    elif arguments["custom_executor_spec"]:
        _logger.warning("`custom_executor_spec` is deprecated; customise the component instead.")
    if arguments["transformed_examples"]:
        _logger.warning("`transformed_examples` is deprecated; use `examples` instead.")
