"""Views of Model and ModelRun for `context.show(trainer.outputs["model_run"])`."""

import functools
import sys

from tfx import types
from tfx.types import standard_artifacts

_REGISTRY = "tfx.orchestration.experimental.interactive.visualizations"


def register_views() -> None:
    """Registers the views if a notebook has imported InteractiveContext; may be called twice."""
    if _REGISTRY in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from tfx.orchestration.experimental.interactive import visualizations

    class ModelRunView(visualizations.ArtifactVisualization):  # type: ignore[misc]
        """Report with curves, and the end of the log."""

        ARTIFACT_TYPE = standard_artifacts.ModelRun

        def display(self, artifact: types.Artifact) -> None:
            _show(artifact.uri)

    class ModelView(visualizations.ArtifactVisualization):  # type: ignore[misc]
        """Report of the run that trained the model."""

        ARTIFACT_TYPE = standard_artifacts.Model

        def display(self, artifact: types.Artifact) -> None:
            from generic_trainer._run.live_view import run_of

            _show(run_of(artifact.uri))

    for view in (ModelRunView, ModelView):
        visualizations.get_registry().register(view)


def _show(run_dir: str) -> None:
    from IPython.display import HTML, display

    from generic_trainer._run.live_view import run_view

    display(HTML(run_view(run_dir)))
