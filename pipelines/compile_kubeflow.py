r"""Compiles the penguin pipeline for Kubeflow Pipelines v2 and for Vertex AI Pipelines.

Both take the same job specification; neither project nor region is part of it, they belong to its
submission::

    python -m pipelines.compile_kubeflow --image REGISTRY/generic-trainer:0.1.0 \
        --root gs://BUCKET/penguin --output penguin.json

The image must hold TFX and `generic_trainer`: TFX's own, with `pip install generic-trainer`, will
do. ``ROOT/data`` must hold the CSV that `pipelines.penguin_data` writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines._command import MODULE_FILES


def compile_penguin(
    root: str,
    image: str,
    *,
    module_file: Path = MODULE_FILES / "penguin_keras.py",
    pipeline_spec_2_1: bool = False,
) -> dict[str, Any]:
    """Compiles the pipeline.

    Args:
        root: Folder or bucket that holds ``data`` and receives ``artifacts`` and ``serving``. User
            code is written there now.
        image: Container image that every step runs in.
        module_file: Local path of the module file.
        pipeline_spec_2_1: Write version 2.1 of the specification, as Vertex AI's template gallery
            asks for, instead of 2.0.

    Returns:
        The PipelineJob as a JSON-like dictionary.
    """
    from tfx import v1 as tfx

    from pipelines.penguin import create_pipeline

    pipeline = create_pipeline(
        pipeline_root=f"{root}/artifacts",
        data_root=f"{root}/data",
        module_file=str(module_file),
        serving_dir=f"{root}/serving",
    )
    config = tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
        default_image=image, use_pipeline_spec_2_1=pipeline_spec_2_1
    )
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(config)
    return runner.run(pipeline, write_out=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the specification to a file; returns 0."""
    parser = argparse.ArgumentParser(description="Penguin pipeline, for Kubeflow and Vertex AI.")
    add = parser.add_argument
    add("--root", required=True, help="folder or bucket for data, artifacts and models")
    add("--image", required=True, help="image with TFX and generic_trainer")
    add("--output", type=Path, default=Path("penguin.json"), help="default: %(default)s")
    add("--module-file", type=Path, default=MODULE_FILES / "penguin_keras.py")
    add("--pipeline-spec-2-1", action="store_true", help="version 2.1, for the template gallery")
    options = parser.parse_args(argv)
    job = compile_penguin(
        options.root.rstrip("/"),
        options.image,
        module_file=options.module_file.resolve(),
        pipeline_spec_2_1=options.pipeline_spec_2_1,
    )
    options.output.write_text(json.dumps(job, indent=2, sort_keys=True))
    print(f"Wrote {options.output}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
