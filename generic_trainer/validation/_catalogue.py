"""All checks, in the order in which they run: what is cheap and fundamental comes first."""

from __future__ import annotations

from generic_trainer.validation._check import Check
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation.dynamic._base_model import base_model
from generic_trainer.validation.dynamic._cost import latency, memory
from generic_trainer.validation.dynamic._deterministic import deterministic
from generic_trainer.validation.dynamic._eval_rehearsal import eval_rehearsal
from generic_trainer.validation.dynamic._golden import golden
from generic_trainer.validation.dynamic._loads import loads
from generic_trainer.validation.dynamic._missing_features import without_label, without_optional
from generic_trainer.validation.dynamic._outputs import (
    output_per_row,
    outputs_finite,
    outputs_vary,
)
from generic_trainer.validation.dynamic._row_independence import row_independence
from generic_trainer.validation.dynamic._scores import scores
from generic_trainer.validation.dynamic._session import session
from generic_trainer.validation.dynamic._warmup import warmup
from generic_trainer.validation.static._absolute_paths import absolute_paths
from generic_trainer.validation.static._assets import assets
from generic_trainer.validation.static._batch_dimension import batch_dimension
from generic_trainer.validation.static._compiled_functions import compiled_functions
from generic_trainer.validation.static._composite_tensors import composite_tensors
from generic_trainer.validation.static._denied_ops import denied_ops
from generic_trainer.validation.static._devices import devices
from generic_trainer.validation.static._eval_config import eval_config
from generic_trainer.validation.static._eval_signatures import eval_signatures
from generic_trainer.validation.static._file_ops import file_ops
from generic_trainer.validation.static._fingerprint import fingerprint
from generic_trainer.validation.static._inputs_read import inputs_read
from generic_trainer.validation.static._leftovers import leftovers
from generic_trainer.validation.static._manifest_matches import manifest_matches
from generic_trainer.validation.static._output_shape import output_shape
from generic_trainer.validation.static._parses import parses
from generic_trainer.validation.static._presence import presence
from generic_trainer.validation.static._python_ops import python_ops
from generic_trainer.validation.static._serialized_input import serialized_input
from generic_trainer.validation.static._serve_tag import serve_tag
from generic_trainer.validation.static._signature_specs import signature_specs
from generic_trainer.validation.static._signatures import required_signatures, signatures_exist
from generic_trainer.validation.static._tensorflow_version import tensorflow_version
from generic_trainer.validation.static._unregistered_ops import unregistered_ops
from generic_trainer.validation.static._variables_finite import variables_finite
from generic_trainer.validation.static._variables_read import variables_read

__all__ = ["ANY_FORMAT", "DYNAMIC", "STATIC", "all_checks", "checks_for"]

ANY_FORMAT: tuple[Check, ...] = (presence, manifest_matches)
STATIC: tuple[Check, ...] = (
    presence,
    inputs_read,
    manifest_matches,
    leftovers,
    parses,
    fingerprint,
    serve_tag,
    tensorflow_version,
    signatures_exist,
    required_signatures,
    signature_specs,
    serialized_input,
    batch_dimension,
    output_shape,
    composite_tensors,
    unregistered_ops,
    denied_ops,
    python_ops,
    file_ops,
    absolute_paths,
    devices,
    compiled_functions,
    assets,
    variables_read,
    variables_finite,
    eval_config,
    eval_signatures,
)
DYNAMIC: tuple[Check, ...] = (
    loads,
    scores,
    output_per_row,
    outputs_finite,
    outputs_vary,
    deterministic,
    row_independence,
    golden,
    without_label,
    without_optional,
    warmup,
    latency,
    memory,
    session,
    base_model,
    eval_rehearsal,
)


def all_checks() -> tuple[Check, ...]:
    """Returns every check, in the order in which they run on a SavedModel."""
    return STATIC + DYNAMIC


def checks_for(contract: ServingContract) -> tuple[Check, ...]:
    """Returns the checks that the contract's format calls for."""
    return ANY_FORMAT if contract.format == "any" else all_checks()
