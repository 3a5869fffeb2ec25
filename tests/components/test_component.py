"""The component in a DAG definition: its arguments, its compiled form, its errors."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorflow_model_analysis.proto import config_pb2
from tfx import types
from tfx.components import CsvExampleGen, Evaluator, Pusher, Trainer, Transform
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.components.trainer.executor import GenericExecutor
from tfx.dsl.compiler.compiler import Compiler
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_artifact_strategy import LatestArtifactStrategy
from tfx.orchestration.data_types import RuntimeParameter
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import pusher_pb2, trainer_pb2
from tfx.types import channel, standard_artifacts, standard_component_specs
from tfx.types.system_executions import Train

from generic_trainer import GenericTrainer, ServingContract
from generic_trainer._core import tfx_names as keys
from generic_trainer.components import GenericTrainerSpec
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.executors import GenericTrainerExecutor
from tests import helpers

Make = Callable[..., GenericTrainer]


def channel_of(artifact_type: type[types.Artifact]) -> types.Channel:
    return channel.Channel(type=artifact_type)


EXAMPLES = channel_of(standard_artifacts.Examples)
GRAPH = channel_of(standard_artifacts.TransformGraph)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a component with the examples and a module file, unless other arguments are given."""
    module_file = helpers.write_module(tmp_path / "code", "def run_fn(fn_args): ...")
    return lambda **arguments: GenericTrainer(
        **{"examples": EXAMPLES, "module_file": module_file, **arguments}
    )


def compiled(components: Any, root: Path) -> Any:
    """Returns the last node of the compiled pipeline."""
    components[-1]._resolve_pip_dependencies(str(root))
    proto = Compiler().compile(Pipeline("p", pipeline_root=str(root), components=components))
    return proto.nodes[-1].pipeline_node


def properties_of(component: GenericTrainer, root: Path) -> dict[str, Any]:
    """Returns the execution properties that the compiled pipeline carries."""
    parameters = compiled([component], root).parameters.parameters
    return {name: value.field_value.string_value for name, value in parameters.items()}


def test_takes_every_argument_and_key_of_tfx() -> None:
    ours = inspect.signature(GenericTrainer.__init__).parameters
    theirs = inspect.signature(Trainer.__init__).parameters
    order = [name for name in theirs if name != "statistics"]  # which newer ones put first
    assert [*ours][: len(order)] == order and "statistics" in ours
    spec = standard_component_specs.TrainerSpec
    assert not spec.INPUTS.keys() - GenericTrainerSpec.INPUTS.keys()
    assert not spec.PARAMETERS.keys() - GenericTrainerSpec.PARAMETERS.keys()
    assert spec.OUTPUTS.keys() <= GenericTrainerSpec.OUTPUTS.keys()
    assert keys.STATISTICS == standard_component_specs.STATISTICS_KEY


def test_public_surface_of_a_tfx_component(make: Make) -> None:
    component = make()
    assert component.id == "GenericTrainer"
    assert component.type == "generic_trainer.components.GenericTrainer"
    assert isinstance(component.spec, GenericTrainer.SPEC_CLASS)
    assert component.outputs["model"].type is standard_artifacts.Model
    assert component.outputs["model_run"].type is standard_artifacts.ModelRun
    assert component.outputs["infra_blessing"].type is standard_artifacts.InfraBlessing
    assert component.type_annotation is Train


def test_all_inputs_reach_the_specification(make: Make) -> None:
    channels = {
        "examples": EXAMPLES,
        "transform_graph": GRAPH,
        "schema": channel_of(standard_artifacts.Schema),
        "base_model": channel_of(standard_artifacts.Model),
        "hyperparameters": channel_of(standard_artifacts.HyperParameters),
        "statistics": channel_of(standard_artifacts.ExampleStatistics),
    }
    embeddings = channel_of(standard_artifacts.Model)
    component = make(**channels, extra_inputs={"embeddings": embeddings})
    assert dict(component.inputs) == {**channels, "extra_input_embeddings": embeddings}
    # One component's inputs are not another's.
    assert "extra_input_embeddings" not in GenericTrainerSpec.INPUTS


def test_transformed_examples_still_work(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    component = make(examples=None, transformed_examples=EXAMPLES, transform_graph=GRAPH)
    assert component.inputs["examples"] is EXAMPLES
    assert "`transformed_examples` is deprecated" in caplog.text


def test_raw_examples_are_found_behind_the_transform_graph(make: Make, tmp_path: Path) -> None:
    raw, transformed = _transform(tmp_path)
    trainer = make(
        examples=transformed["transformed_examples"], transform_graph=transformed["transform_graph"]
    )
    assert trainer.inputs["raw_examples"] is raw
    transform = transformed["transform_graph"].producer_component
    example_gen, schema = (
        transform.inputs[name].producer_component for name in ("examples", "schema")
    )
    node = compiled([example_gen, schema, transform, trainer], tmp_path / "root")
    (source,) = node.inputs.inputs["raw_examples"].channels
    assert source.producer_node_query.id == example_gen.id


def _transform(tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Returns raw examples, and the outputs of the Transform that read them."""
    raw = CsvExampleGen(input_base=str(tmp_path)).outputs["examples"]
    schema = ImportSchemaGen(schema_file=str(tmp_path / "schema.pbtxt")).outputs["schema"]
    transform = Transform(examples=raw, schema=schema, preprocessing_fn="module.preprocessing_fn")
    return raw, dict(transform.outputs)


def test_an_artifact_is_an_input_once(make: Make, tmp_path: Path) -> None:
    raw, transformed = _transform(tmp_path)
    graph = transformed["transform_graph"]
    schema = channel_of(standard_artifacts.Schema)
    base = channel_of(standard_artifacts.Model)
    other = channel_of(standard_artifacts.Examples)
    both = channel.union([raw, other])
    of_others = {"schema": schema, "base_model": base}
    for examples, extra_inputs, same in (
        (raw, {}, {"raw_examples": "examples"}),
        (raw, {"a": raw}, {"extra_input_a": "examples", "raw_examples": "examples"}),
        (other, {"a": raw}, {"raw_examples": "extra_input_a"}),
        (other, {"a": other, "g": graph}, {"extra_input_a": "examples",
                                           "extra_input_g": "transform_graph"}),
        (other, {"s": schema, "b": base}, {"extra_input_s": "schema",
                                           "extra_input_b": "base_model"}),
        (both, {}, {}),
        (other, {"a": both}, {}),
    ):  # fmt: skip
        trainer = make(
            examples=examples, transform_graph=graph, extra_inputs=extra_inputs, **of_others
        )
        inputs = list(trainer.inputs.values())
        assert len({id(given) for given in inputs}) == len(inputs)
        united = examples is both or both in extra_inputs.values()
        assert (raw in inputs) != united
        assert json.loads(trainer.exec_properties["same_inputs"] or "{}") == same


def test_an_executor_of_the_user_gets_each_input(make: Make, tmp_path: Path) -> None:
    raw, transformed = _transform(tmp_path)
    trainer = make(
        examples=raw,
        transform_graph=transformed["transform_graph"],
        extra_inputs={"raw": raw},
        custom_executor_spec=ExecutorClassSpec(BaseExecutor),
    )
    assert [name for name, given in trainer.inputs.items() if given is raw] == [
        "examples",
        "extra_input_raw",
    ]


@pytest.mark.parametrize("from_resolver", [False, True])
def test_raw_examples_may_be_unknown(from_resolver: bool, make: Make) -> None:
    graph = GRAPH
    if from_resolver:
        graph = Resolver(strategy_class=LatestArtifactStrategy, graph=graph).outputs["graph"]
    assert "raw_examples" not in make(transform_graph=graph).inputs


def test_arguments_in_the_compiled_pipeline(make: Make, tmp_path: Path) -> None:
    contract = ServingContract(max_latency_ms=20, severities={"latency": "warn"})
    component = make(
        train_args=trainer_pb2.TrainArgs(splits=["train"], num_steps=5),
        eval_args={"num_steps": 2},
        custom_config={"epochs": 3},
        contract=contract,
        sign_with="/keys/key.pem",
    )
    properties = properties_of(component, tmp_path / "root")
    assert properties["sign_with"] == "/keys/key.pem"
    assert json.loads(properties["train_args"]) == {"splits": ["train"], "num_steps": 5}
    assert json.loads(properties["eval_args"]) == {"num_steps": 2}
    assert json.loads(properties["custom_config"]) == {"epochs": 3}
    assert ServingContract.from_json(properties["contract"]) == contract
    assert "module_file" not in properties
    module, _, bundle = properties["module_path"].partition("@")
    assert module == "trainer"
    assert Path(bundle).parent == tmp_path / "root" / "_bundles"
    assert properties["module_hash"][:16] in bundle


def test_edited_helper_changes_the_hash_and_a_neighbour_does_not(
    make: Make, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    component = make()
    helpers.write_module(code, "def run_fn(fn_args):\n    import my_helper")
    (code / "my_helper.py").write_text("A = 1")
    first = properties_of(make(), tmp_path / "root")
    (code / "my_neighbour.py").write_text("B = 1")
    # Of another component, and of one that is used again.
    assert properties_of(component, tmp_path / "root") == first
    (code / "my_helper.py").write_text("A = 2")
    assert properties_of(component, tmp_path / "root")["module_hash"] != first["module_hash"]


def test_run_fn_of_an_installed_package_is_not_bundled(make: Make, tmp_path: Path) -> None:
    run_fn = "tfx.examples.penguin.penguin_utils_keras.run_fn"
    properties = properties_of(make(module_file=None, run_fn=run_fn), tmp_path / "root")
    assert properties["run_fn"] == run_fn
    assert not {"module_path", "module_file"} & properties.keys()


def test_runtime_parameters_stay_open_until_the_run(make: Make, tmp_path: Path) -> None:
    component = make(
        module_file=RuntimeParameter(name="module", ptype=str),
        train_args=RuntimeParameter(name="train-args", ptype=str),
        eval_args={"num_steps": RuntimeParameter(name="eval-steps", ptype=int)},
        custom_config=RuntimeParameter(name="custom-config", ptype=str),
    )
    parameters = compiled([component], tmp_path / "root").parameters.parameters
    expected = {"module_file": "module", "train_args": "train-args"}
    for name, parameter in {**expected, "custom_config": "custom-config"}.items():
        assert parameters[name].runtime_parameter.name == parameter


def test_without_a_pipeline_root_the_module_file_stays(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    component = make()
    component._resolve_pip_dependencies("")
    assert component.exec_properties["module_file"] == str(tmp_path / "code" / "trainer.py")
    assert "must exist where the step runs" in caplog.text


class Another(GenericExecutor):
    """An executor that a user derives from TFX's."""


class Subclassed(GenericTrainerExecutor):
    """An executor that a user derives from ours."""


@pytest.mark.parametrize(
    ("given", "used", "package", "told"),
    [
        (GenericExecutor, GenericTrainerExecutor, ".zip", "names the executor of TFX's Trainer"),
        (Another, Another, ".whl", "`custom_executor_spec` is deprecated"),
        (Subclassed, Subclassed, ".zip", ""),
    ],
)
def test_each_executor_gets_the_code_as_it_reads_it(
    given: type,
    used: type,
    package: str,
    told: str,
    make: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    component = make(custom_executor_spec=ExecutorClassSpec(given))
    component._resolve_pip_dependencies(str(tmp_path / "root"))
    assert component.executor_spec.executor_class is used
    assert component.exec_properties["module_path"].endswith(package)
    assert told in caplog.text


@pytest.mark.parametrize(
    ("names", "consumers", "renamed"),
    [
        (("Evaluator", "Pusher"), (), ()),
        (("Evaluator.gate", "my_pusher"), (), ()),
        (("QualityGate", "Release"), (), ("Evaluator 'QualityGate'", "Pusher 'Release'")),
        (("QualityGate", "Release"), ("Evaluator", "Pusher"), ()),
    ],
)
def test_consumers_that_their_ids_do_not_name_are_named(
    names: tuple[str, str],
    consumers: tuple[str, ...],
    renamed: tuple[str, ...],
    make: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OfTheHouse(Pusher):
        """A component that a team derives."""

    trainer = make(contract=ServingContract(consumers=consumers) if consumers else None)
    model = trainer.outputs["model"]
    evaluator = Evaluator(examples=EXAMPLES, model=model).with_id(names[0])
    destination = pusher_pb2.PushDestination()
    pusher = OfTheHouse(model=model, push_destination=destination).with_id(names[1])
    Pipeline("p", pipeline_root=str(tmp_path), components=[trainer, evaluator, pusher])
    trainer._resolve_pip_dependencies(str(tmp_path / "root"))
    told = [each.getMessage() for each in caplog.records if "consumers" in each.getMessage()]
    assert bool(told) is bool(renamed) and all(f"the {each}" in told[0] for each in renamed)


def test_the_executor_of_ai_platform_is_refused(make: Make) -> None:
    # Imports Google's client libraries, for seconds.
    from tfx.extensions.google_cloud_ai_platform.trainer import executor

    with pytest.raises(ConfigurationError, match=r"no longer exists: use generic_trainer\.vertex"):
        make(custom_executor_spec=ExecutorClassSpec(executor.GenericExecutor))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module_file": None}, "exactly one of `module_file` .* and `run_fn` .*, not neither"),
        ({"run_fn": "package.run_fn"}, "exactly one of `module_file` .*, not both"),
        ({"module_file": None, "run_fn": "run_fn"}, "must be the import path .* got 'run_fn'"),
        ({"module_file": 3}, "`module_file` must be a string or a RuntimeParameter, but got 3"),
        ({"examples": None}, "exactly one of `examples` and `transformed_examples`.*, not neither"),
        ({"examples": "data"}, "`examples` must be a channel of Examples .* got 'data'"),
        ({"schema": channel_of(standard_artifacts.Model)}, "Schema artifacts, but .* type Model"),
        ({"statistics": 1}, "`statistics` must be a channel of ExampleStatistics artifacts"),
        ({"train_args": 5}, r"`train_args` must be a tfx.proto.TrainArgs: got 5 of type int"),
        ({"train_args": {"num_steps": "many"}}, "`train_args` must be a tfx.proto.TrainArgs"),
        ({"eval_args": trainer_pb2.EvalArgs(num_steps=-1)}, "or more, but got -1"),
        ({"custom_config": [1]}, r"`custom_config` must be a dict .* got \[1\] of type list"),
        ({"custom_config": {"f": object()}}, "`custom_config` must be JSON-serialisable"),
        ({"custom_executor_spec": "x"}, "`custom_executor_spec` must be an ExecutorSpec"),
        ({"extra_inputs": [1]}, "`extra_inputs` must be a dict of name → channel"),
        ({"extra_inputs": {"a b": 1}}, r"must be Python identifiers, but one is 'a b'"),
        ({"extra_inputs": {"a": 1}}, r"`extra_inputs\['a'\]` must be a channel, but got 1"),
        ({"eval_config": 1}, "`eval_config` must be a tfma.EvalConfig, but got 1 of type int"),
        ({"eval_config": config_pb2.EvalConfig()}, "would make the Evaluator fail: .* model_specs"),
        ({"contract": 1}, "`contract` must be a ServingContract, but got 1 of type int"),
        ({"sign_with": 1}, "`sign_with` must be a str, but got 1 of type int"),
        ({"distribution": 1}, "`distribution` must be a Distribution, but got 1 of type int"),
    ],
)
def test_wrong_argument(arguments: Any, message: str, make: Make) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**arguments)


def test_an_eval_config_is_as_severe_as_the_contract_says(make: Make) -> None:
    contract = ServingContract(severities={"eval_config": "warn"})
    make(eval_config=config_pb2.EvalConfig(), contract=contract)


def test_wrong_arguments_are_reported_together() -> None:
    with pytest.raises(ValueError) as caught:
        GenericTrainer(transformed_examples=EXAMPLES, schema=1, train_args=2)
    message = str(caught.value)
    assert message.startswith("GenericTrainer got wrong arguments: 4 problems\n")
    for text in ("`transform_graph`", "`module_file`", "`schema`", "`train_args`"):
        assert text in message


def test_missing_module_file(make: Make, tmp_path: Path) -> None:
    component = make(module_file=str(tmp_path / "none.py"))
    with pytest.raises(ModuleFileError, match=r"none\.py"):
        component._resolve_pip_dependencies(str(tmp_path / "root"))
