"""Where the ideas of the default tests' broken models come from, and whom they break."""

import dataclasses

from tests.validation import broken_evaluations, broken_rows
from tests.validation.catalogue import consumers, exports, files, graphs, scores, signatures
from tests.validation.catalogue.rows import FAULTS
from tests.validation.recipes import Recipe

__all__ = ["all_faults"]

_MODULES = (files, signatures, graphs, scores, consumers, exports)  # which register what they have

_BY_CHECK = {
    "presence": "serving#601", "parses": "TransNetV2#6", "fingerprint": "tensorflow fingerprints",
    "variables_read": "hub#305, models#8451", "variables_finite": "tensorflow#38698",
    "assets": "hub#822", "leftovers": "blocksparse#27", "serve_tag": "tensorpack#1449",
    "signatures_exist": "tensorflow#69307", "required_signatures": "model_zoo#3",
    "signature_specs": "tfx#4390", "batch_dimension": "tpu#452, automl#594",
    "output_shape": "serving#276", "serialized_input": "tfx-bsl#29, tfx#3927",
    "composite_tensors": "serving#2222, tensorflow#34603", "signature_tensors": "serving#295",
    "signature_methods": "serving#1512", "session": "tfx#7782, tensorflow#72963",
    "python_ops": "serving#992, serving#54", "denied_ops": "house rules of a platform",
    "file_ops": "docs/security.md", "unregistered_ops": "serving#1865, serving#2267",
    "absolute_paths": "transform#120, tensorflow#46826", "devices": "tfx#2894",
    "compiled_functions": "tensorflow jit_compile", "tensorflow_version": "serving#831",
    "served_by": "serving#831",
    "scores": "tfx#2920, tfx#4505", "row_independence": "tensorflow#9796",
    "deterministic": "serving#602, serving#689", "output_per_row": "serving#276",
    "outputs_finite": "tfx#2022, serving#1670", "outputs_vary": "tensorflow#23630",
    "without_label": "tfx#2920", "without_optional": "tfx#5518", "inputs_read": "tfx#388",
    "latency": "tfx-addons#29", "memory": "serving#1215", "warmup": "serving#1562, serving#1602",
    "state_growth": "serving#1215", "manifest_matches": "supply chain", "golden": "supply chain",
    "eval_rows": "serving#1670", "schema_rows": "keras#11819", "unforeseen_rows": "tfx#4390",
    "observed_rows": "tfx#2309",
    "batch_sizes": "ultralytics#10194", "schema_features": "tfx#2309",
    "label_inputs": "tfx#2920", "vocabularies": "transform#237, transform#120",
    "eval_config": "tfx#5148, model-analysis#90", "eval_signatures": "tfx#4505, tfx#2429",
    "loads": "tensorflow#24857",
}  # fmt: skip
_OF_ITS_OWN = {
    "pickle_instead_of_saved_model": "tfx Trainer with scikit-learn",
    "model_one_folder_too_deep": "serving#491",
    "variables_of_another_model": "serving#441", "shards_of_two_saves": "blocksparse#27",
    "custom_op": "serving#278", "collective": "models#10849", "worker_device": "tfx#2894",
    "live_dropout": "serving#602", "keras_3_saved_as_a_module": "tfx#7782, keras#20095",
    "no_thresholds": "tfx#5148", "input_of_another_dtype": "tfx#2429",
    "several_outputs_without_prediction_key": "model-analysis#111",
    "wrong_preprocessing_function": "tfx#2920", "warm_up_without_end": "serving#1728",
}  # fmt: skip


def all_faults() -> dict[str, Recipe]:
    """Returns every broken model by name, those of the default tests first."""
    tested = {**broken_rows.RECIPES, **broken_evaluations.RECIPES}
    told = {
        name: dataclasses.replace(
            recipe,
            source=_OF_ITS_OWN.get(name, _BY_CHECK[recipe.check]),
            breaks="Evaluator" if recipe.check.startswith("eval_") else "all",
        )
        for name, recipe in tested.items()
    }
    return {**told, **FAULTS}
