from pathlib import Path
from typing import Any

import pytest
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import ServingContract, SignatureSpec

FULL = ServingContract(
    examples=(b"\x00\xff", b"record"),
    schema="schema.pbtxt",
    signatures=("predict", SignatureSpec("serving_default", {"examples": "string[None]"})),
    label_keys=("tips",),
    max_latency_ms=20.0,
    denied_ops=("Print",),
    severities={"latency": "warn"},
    probe_s=0.5,
    rehearse=True,
    served_by=("tensorflow_serving==2.19", "tensorflow==2.16.2"),
)


def test_json_and_yaml_and_back(tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text(FULL.to_json())
    assert ServingContract.from_yaml(tmp_path / "contract.yaml") == FULL
    contract = ServingContract(schema=schema_pb2.Schema(feature=[{"name": "miles"}]))
    for each in (FULL, contract):
        assert ServingContract.from_json(each.to_json()) == each


def test_yaml_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(
        "signatures:\n- name: serving_default\n  inputs: {examples: 'string[None]'}\n"
        "label_keys: tips\nmax_latency_ms: 5\n"
    )
    contract = ServingContract.from_yaml(file)
    assert contract.label_keys == ("tips",)
    expected = SignatureSpec("serving_default", {"examples": "string[None]"})
    assert contract.signature_specs == (expected,)
    file.write_text("")
    assert ServingContract.from_yaml(file) == ServingContract()


WRONG = [
    ("- a", "must be a JSON object"),
    ("format: pickle", "format must be 'saved_model' or 'any'"),
    ("signatures: [{nme: x}]", "nme"),
    (": : :", "cannot be read"),
    ("max_latency_ms: fast", "max_latency_ms"),
    ("severities: 5", "severities must be a dict"),
    ("severities: {laetncy: warn}", "unknown check 'laetncy' (did you mean 'latency'?)"),
    ("severities: {latency: [warn]}", "severities.latency must be 'fail', 'warn' or 'skip'"),
    ("severities: {2020-01-01: warn}", "unknown check '2020-01-01'"),
    ("label_key: tips", "has no field 'label_key' (did you mean 'label_keys'?)"),
    ("label_keys: 5", "label_keys must be a list of names, got 5 of type int"),
    ("label_keys: {tips: 1}", "label_keys must be a list of names"),
    ("label_keys: [[a]]", "label_keys must be a list of names, got"),
    ("signatures: null", "signatures must be a list"),
    ("signatures: [5]", "signatures[0] must be a name or a SignatureSpec, got 5"),
    ("signatures: [{name: 5}]", "name must be a string"),
    ("signatures: [{name: a, inputs: [b]}]", "inputs must be a dict"),
    ("signatures: [{name: a, inputs: {b: 'float32[x]'}}]", "a tensor such as"),
    ("schema: 5", "schema must be a path or a Schema"),
    ("schema: {proto_text: 'features { }'}", "schema cannot be read: "),
    ("schema: {proto_text: 5}", "schema cannot be read: "),
    ("base_model: {proto_text: ''}", "base_model must be a path, got"),
    ('schema: "a\\0b"', "schema must be a path"),
    ("examples: 5", "examples must be a path or serialized tf.Examples"),
    ("examples: [a, b]", "examples must be a path or serialized tf.Examples"),
    ("examples: [{base64: 5}]", "examples cannot be read: "),
    ("examples: [{base64: '#'}]", "examples cannot be read: "),
    ("max_memory_mb: .nan", "max_memory_mb must be a finite number, got nan"),
    (f"max_memory_mb: {10**400}", "max_memory_mb must be a number"),
    ("served_by: tensorflow==3.1", "served_by must be 'tensorflow==2.N' or"),
    ("served_by: tensorflow==2.99", "N from 8 to 21, got 'tensorflow==2.99'"),
    ("served_by: [tflite==2.16]", "'tflite==2.16': ops of TFLite have versions of their own"),
    ("served_by: 5", "served_by must be a list of names, got 5"),
    ("rehearse: maybe", "rehearse must be True or False"),
    ("label_keys: [a]\nlabel_keys: [b]", "the key 'label_keys' is there twice"),
    ("{[a]: 1}", "cannot be read"),
    ("1: 2", "has no field '1'"),
]


@pytest.mark.parametrize(("text", "told"), WRONG)
def test_wrong_yaml_is_explained(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        ServingContract.from_yaml(file)
    assert told in str(caught.value)
    assert caught.value.path == str(file)


def test_all_wrong_values_of_python_are_listed_at_once() -> None:
    wrong: Any = {"label_keys": 7, "schema": [], "examples": {"a": 1}, "max_latency_ms": -1}
    wrong |= {"max_memory_mb": 0, "severities": {"latency": "loud"}}
    with pytest.raises(ConfigurationError) as caught:
        ServingContract(**wrong)
    assert len(caught.value.problems) == len(wrong)
    assert all(name in str(caught.value) for name in (*wrong, "latency"))
