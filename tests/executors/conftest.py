"""A trainer of a pipeline, without the pipeline."""

import json
from pathlib import Path
from typing import Any

import pytest
from tfx import types

from tests import helpers

PLAIN = "def run_fn(fn_args):\n    export(fn_args.serving_model_dir)\n"

# For `helpers.run_fn`: a training that lasts until its steps are seen.
FITS = """
    import time
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rests = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.3))
    model.fit(tf.ones([8, 2]), tf.ones([8, 1]), epochs=5, callbacks=[rests], verbose=0)
"""


class Node:
    """Runs module files on the same examples, by default in the same output directories.

    Attributes:
        outputs: output name → its artifact, in a list.
        module_file: path of the module file of the last run.
    """

    def __init__(self, root: Path, examples: types.Artifact) -> None:
        self.root, self.examples = root, examples
        self.module_file = ""
        self.new_outputs()

    def new_outputs(self, number: int = 1, below: str = "") -> None:
        """Makes the output directories of the run of this number."""
        self.outputs = helpers.output_artifacts(below or self.root / "node", number)

    def run(
        self, source: str = PLAIN, *, inputs: Any = None, context: Any = None, **properties: Any
    ) -> None:
        """Writes the module file and runs the executor on it."""
        self.module_file = helpers.write_module(self.root / "code", source)
        helpers.train(self.module_file, self.examples, self.outputs, inputs, context, **properties)

    def schema(self) -> dict[str, list[types.Artifact]]:
        """Writes a schema of the examples and returns it as an input."""
        return {"schema": [helpers.write_schema(self.root / "schema")]}

    def path(self, output: str) -> Path:
        """Returns the directory of an output."""
        return Path(self.outputs[output][0].uri)

    def names(self, output: str) -> list[str]:
        """Returns the names of the files and directories of an output."""
        return sorted(path.name for path in self.path(output).iterdir())

    @property
    def model(self) -> types.Artifact:
        return self.outputs["model"][0]

    @property
    def published(self) -> Path:
        """Where consumers look for the model."""
        return Path(helpers.published_model(self.outputs))

    @property
    def failed(self) -> Path:
        """What is kept of a failed run."""
        return Path(f"{self.path('model_run')}.failed")

    def report(self) -> dict[str, Any]:
        """Returns the report of the checks."""
        content: dict[str, Any] = json.loads((self.path("model_run") / "report.json").read_text())
        return content


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> types.Artifact:
    return helpers.write_examples(tmp_path_factory.mktemp("inputs") / "examples")


@pytest.fixture
def node(tmp_path: Path, examples: types.Artifact) -> Node:
    return Node(tmp_path, examples)
