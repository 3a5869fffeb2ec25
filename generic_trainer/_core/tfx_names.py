"""Names of the component's inputs, outputs, execution properties and directories.

The same strings as in `tfx.types.standard_component_specs`, which is not imported because it loads
Beam and TensorFlow Model Analysis.
"""

# Inputs.
EXAMPLES = "examples"
TRANSFORM_GRAPH = "transform_graph"
SCHEMA = "schema"
BASE_MODEL = "base_model"
HYPERPARAMETERS = "hyperparameters"
STATISTICS = "statistics"
# No argument of the component, but what the transform graph was made from.
RAW_EXAMPLES = "raw_examples"
# The component's `extra_inputs={"embeddings": ...}` is the input `extra_input_embeddings`.
EXTRA_INPUT_PREFIX = "extra_input_"

# Outputs.
MODEL = "model"
MODEL_RUN = "model_run"
INFRA_BLESSING = "infra_blessing"

# Execution properties.
TRAIN_ARGS = "train_args"
EVAL_ARGS = "eval_args"
MODULE_FILE = "module_file"
MODULE_PATH = "module_path"
MODULE_HASH = "module_hash"
RUN_FN = "run_fn"
CUSTOM_CONFIG = "custom_config"
CONTRACT = "contract"
EVAL_CONFIG = "eval_config"
DISTRIBUTION = "distribution"
TRACKING = "tracking"
SIGN_WITH = "sign_with"
# JSON: input of a channel that is passed once, under another name → that name.
SAME_INPUTS = "same_inputs"

# Directories of a Model artifact (`tfx.utils.path_constants`).
SERVING_MODEL_DIR = "Format-Serving"
EVAL_MODEL_DIR = "Format-TFMA"
# Inside a TransformGraph artifact (`tensorflow_transform.TFTransformOutput`).
RAW_SCHEMA = "metadata/schema.pbtxt"
TRANSFORMED_SCHEMA = "transformed_metadata/schema.pbtxt"
# `tfx.proto.example_gen_pb2.PayloadFormat.FORMAT_TF_EXAMPLE`.
FORMAT_TF_EXAMPLE = 6
