"""The distribution `generic-trainer`; what the tools read is in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version() -> str:
    """Returns `generic_trainer.__version__` without importing the package."""
    source = (ROOT / "generic_trainer" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if match is None:
        raise RuntimeError('generic_trainer/__init__.py has no line `__version__ = "..."`')
    return match[1]


def read_long_description() -> str:
    """Returns the README, or nothing in a checkout that has none yet."""
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


# No environment marker can express the C library, and none has to: TFX 1.17 and later need wheels
# for glibc >= 2.39 (of ml-metadata and tensorflow-data-validation), so that pip and uv fall back to
# TFX 1.16, and with it to Python 3.10, wherever the newest cannot run.
INSTALL_REQUIRES = [
    "tfx>=1.16,<1.22",
    # TFX imports these without asking for them.
    "dill>=0.3.1.1",  # tfx_bsl 1.16; Apache Beam brought it until 2.73
    "tensorboard>=2.16,<2.22",  # tf.summary; TensorFlow brought it until 2.20
    "tf-keras>=2.16,<2.22",  # Transform and Model Analysis, whatever tf.keras is
    "argcomplete>=3",  # completion in the shell
    "jinja2>=3",  # report.html and `generic-trainer init`
    # generic_trainer.estimator: the last release. It asks for nothing, not even for TensorFlow.
    "tensorflow-estimator==2.15.*",
    "pyyaml>=6",  # ServingContract.from_yaml
    "rich>=13",  # the report on a terminal
    # Transform and Tuner pack their module files with `python -m pip` at run time.
    "pip",
    "wheel",
    # tensorflow_hub and TensorBoard 2.16 import pkg_resources, which 82 dropped and 80.9 warns of.
    "setuptools>=65,<80.9",
    # Python 3.10 can have either stack. TFX 1.16 ends at protobuf 3.20 and Beam 2.74, TFX 1.21
    # starts at protobuf 6: without these two lines pip loses itself among what lies between.
    'apache-beam[gcp]>=2.47,<2.75; python_version < "3.11"',
    'protobuf>=3.20.3,!=4.*,!=5.*,<7; python_version < "3.11"',
]

KFP = ["kfp>=2.5,<2.17"]  # 2.5 beside TFX 1.16 (protobuf 3), 2.16 beside TFX 1.21 (protobuf 6)
RAY = [
    "ray[train]>=2.51,<3",  # the first release whose Ray Train is the second version
    "aiohttp>=3",  # submitting jobs: ray imports it without asking for it
    "pathspec>=0.12",  # .detignore
]
ONNX = ["onnxruntime>=1.18,<2"]  # the checks of ONNX models run them
KUBERNETES = ["kubernetes>=26,<36"]
SLIM = ["tf-slim==1.1.*"]  # tf.contrib's layers; the last release
VERTEX = ["google-cloud-aiplatform>=1.60,<2"]  # TFX asks for it as well
EXAMPLES = ["palmerpenguins>=0.1.4", "scikit-learn"]  # the data of the example pipelines
NOTEBOOK = [
    "ipykernel>=6",
    "matplotlib>=3.7",
    "nbclient>=0.8",
    "nbformat>=5",  # InteractiveContext imports it, TFX does not ask for it
    "notebook>=6.5",
]
DOCS = [
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.5,<10",
    "mkdocstrings[python]>=1,<2",
    "pymdown-extensions>=10,<12",  # 12 has another Highlight than mkdocstrings 1.0 calls
]
RUN_TESTS = ["hypothesis>=6.100", "pytest>=8", "pytest-xdist>=3.5"]
MLFLOW = ["mlflow-skinny>=3,<4"]  # the client alone; the whole `mlflow` brings it too
WANDB = ["wandb>=0.19,<1"]
TEST = [*EXAMPLES, *KFP, *KUBERNETES, *MLFLOW, *NOTEBOOK, *ONNX, *RAY, *RUN_TESTS, *SLIM, *VERTEX]
DEV = [*TEST, *DOCS, "mypy>=1.11", "ruff>=0.9", "types-PyYAML"]

setup(
    name="generic-trainer",
    version=read_version(),
    description="A drop-in replacement of the TFX Trainer that publishes only models that work",
    long_description=read_long_description(),
    long_description_content_type="text/markdown",
    author="The GenericTrainer maintainers",
    license="Apache-2.0",
    keywords=[
        "tfx",
        "tensorflow",
        "keras",
        "mlops",
        "pipeline",
        "training",
        "savedmodel",
        "serving",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["generic_trainer", "generic_trainer.*"]),
    package_data={"": ["py.typed", "templates/*"]},
    entry_points={
        "console_scripts": ["generic-trainer = generic_trainer.cli:main"],
        "generic_trainer.trainer_apis": [
            "trainer_fn = generic_trainer.estimator._trainer_fn:TRAINER_FN",
            "trial = generic_trainer.trials._entry_point:TRIAL",
        ],
        "generic_trainer.trackers": [
            "mlflow = generic_trainer.tracking._mlflow:MlflowTracker",
            "vertex = generic_trainer.tracking._vertex:VertexTracker",
            "wandb = generic_trainer.tracking._wandb:WandbTracker",
        ],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require={
        "docs": DOCS,
        "kfp": KFP,
        "kubernetes": KUBERNETES,
        "onnx": ONNX,
        "mlflow": MLFLOW,
        "ray": RAY,
        "slim": SLIM,
        "vertex": VERTEX,
        "wandb": WANDB,
        "notebook": NOTEBOOK,
        "examples": EXAMPLES,
        "test": TEST,
        "dev": DEV,
    },
)
