"""The tensors of a schema are those that TFX's own reader makes of it."""

from typing import Any

import pytest
from tfx_bsl.tfxio import tf_example_record

from generic_trainer.data._parser import Parser
from generic_trainer.errors import ConfigurationError
from tests.data.reading import schema_of

DENSE = "presence { min_fraction: 1 } shape { dim { size: 2 } dim { size: 3 } }"
FEATURES = f"""
    feature {{ name: "dense" type: FLOAT {DENSE} }}
    feature {{ name: "list" type: BYTES }}
    feature {{ name: "count" type: INT value_count {{ min: 1 max: 1 }} }}
    feature {{ name: "i" type: INT int_domain {{ min: 0 max: 9 }} }}
    feature {{ name: "j" type: INT }}
    feature {{ name: "v" type: FLOAT }}
"""


def group(*tensors: str) -> str:
    entries = " ".join(
        f'tensor_representation {{ key: "{name}" value {{ {text} }} }}'
        for name, text in zip("abcdefgh", tensors, strict=False)
    )
    return f'tensor_representation_group {{ key: "" value {{ {entries} }} }}'


SPARSE = (
    'name: "s" index_feature { name: "i" } index_feature { name: "j" } value_feature { name: "v" }'
)
GOOD = {
    "plain": "",
    "ragged": "represent_variable_length_as_ragged: true",
    "sparse": f"sparse_feature {{ {SPARSE} }}",
    "sorted": f"sparse_feature {{ {SPARSE} is_sorted: true }}",
    "unused sparse": f"sparse_feature {{ {SPARSE} lifecycle_stage: PLANNED }}",
    "deprecated": 'feature { name: "old" type: INT deprecated: true }',
    "alpha": 'feature { name: "new" type: INT lifecycle_stage: ALPHA shape {} }',
    "beta": 'feature { name: "new" type: INT lifecycle_stage: BETA }',
    "empty struct": 'feature { name: "nothing" type: STRUCT struct_domain {} deprecated: true }',
    "another group": 'tensor_representation_group { key: "other" value {} }',
    "dense": group(
        'dense_tensor { column_name: "list" shape {} default_value { bytes_value: "?" } }',
        'dense_tensor { column_name: "count" shape { dim { size: 2 } } '
        "default_value { int_value: -1 } }",
    ),
    "named as another feature": group('varlen_sparse_tensor { column_name: "j" }').replace(
        'key: "a"', 'key: "count"'
    ),
    "explicit": group(
        'varlen_sparse_tensor { column_name: "list" }',
        'sparse_tensor { index_column_names: ["i", "j"] value_column_name: "v" '
        "dense_shape { dim { size: 4 } dim { size: -1 } } }",
        'ragged_tensor { feature_path { step: "count" } row_partition_dtype: INT32 '
        "partition { uniform_row_length: 2 } }",
    ),
    "row lengths": group(
        'ragged_tensor { feature_path { step: "v" } partition { row_length: "i" } '
        'partition { row_length: "j" } }'
    ),
}
BAD = {
    "struct": 'feature { name: "x" type: STRUCT struct_domain { feature { name: "y" } } }',
    "shape of what may be missing": 'feature { name: "x" type: INT shape {} }',
    "no type": 'feature { name: "x" }',
    "sparse without its index": SPARSE.replace('"i"', '"lost"').join(("sparse_feature { ", " }")),
    "sparse domain from 1": 'feature { name: "k" type: INT int_domain { min: 1 max: 3 } } '
    + SPARSE.replace('"i"', '"k"').join(("sparse_feature { ", " }")),
    "two of one column": group(
        'varlen_sparse_tensor { column_name: "list" }',
        'dense_tensor { column_name: "list" shape {} }',
    ),
    "no such column": group('varlen_sparse_tensor { column_name: "lost" }'),
    "no kind": group(""),
    "path of two steps": group('ragged_tensor { feature_path { step: "i" step: "j" } }'),
    "default of another type": group(
        'dense_tensor { column_name: "list" shape {} default_value { int_value: 1 } }'
    ),
}


def tfx_parser(schema: Any) -> tuple[dict[str, Any], dict[str, str]]:
    record = tf_example_record.TFExampleRecord("unused", schema=schema, telemetry_descriptors=["t"])
    return record._GetTfExampleParserConfig()


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_schema_gives_the_tensors_that_it_gives_tfx(text: str) -> None:
    schema = schema_of(FEATURES + text)
    ours = Parser.from_schema(schema, None)
    features, names = tfx_parser(schema)
    expected = {names[key]: repr(config) for key, config in features.items()}
    assert {ours.tensor_names[k]: repr(config) for k, config in ours.features.items()} == expected
    assert schema == schema_of(FEATURES + text)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_schema_that_tfx_refuses_is_refused(text: str) -> None:
    schema = schema_of(FEATURES + text)
    with pytest.raises(Exception, match=r".") as refused:
        tfx_parser(schema)
    assert refused.value
    with pytest.raises(ConfigurationError, match=r"Examples cannot be read by the schema: .*\w"):
        Parser.from_schema(schema, None)
