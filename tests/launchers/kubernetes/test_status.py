"""What the pods of a TrainJob tell Kubeflow Trainer, held against the schema of KEP-2779."""

import datetime
import http.server
import json
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest

from generic_trainer._core.progress import Progress
from generic_trainer.errors import TrainingError
from generic_trainer.launchers._kubernetes import status
from tests.launchers.jobs import exported, runner

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates")

FITS = """
import time

def run_fn(fn_args):
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pause = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.3))
    ones = tf.ones([32, 1])
    model.fit(ones, ones, batch_size=8, epochs=5, callbacks=[pause], verbose=0)
    export(fn_args.serving_model_dir)
"""

Text = Annotated[str, pydantic.Field(min_length=1)]
Metric = Annotated[dict[Literal["name", "value"], Text], pydantic.Field(min_length=2)]


class TrainerStatus(pydantic.BaseModel, extra="forbid", strict=True):
    """`TrainJobTrainerStatus` of the KEP."""

    progressPercentage: int | None = pydantic.Field(None, ge=0, le=100)
    estimatedRemainingSeconds: int | None = pydantic.Field(None, ge=0, lt=2**31)
    metrics: list[Metric] = []
    lastUpdatedTime: Annotated[datetime.datetime, pydantic.Strict(False)]


class Controller(http.server.ThreadingHTTPServer):
    """The status server of the controller, which answers as it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[tuple[str, Any]] = []  # token, body
        self.answer = 200
        self.goes_on = threading.Event()
        self.goes_on.set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder / "ca.crt"))
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((self.headers["Authorization"], body))
        self.server.goes_on.wait()
        self.send_response(self.server.answer)
        self.end_headers()


def certificate(path: Path) -> Path:
    """Writes a certificate for 127.0.0.1, with its key, and returns the path."""
    name = "-subj /CN=controller -addext subjectAltName=IP:127.0.0.1"
    made = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes {name} -keyout -"
    path.write_bytes(subprocess.run(made.split(), capture_output=True, check=True).stdout)
    return path


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """A controller; this process is in a pod of its TrainJob."""
    (tmp_path / "token").write_text("first\n")
    server = Controller(tmp_path)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    given: dict[str, Any] = {"TOKEN": tmp_path / "token", "CA_CERT": tmp_path / "ca.crt"}
    given["URL"] = f"https://127.0.0.1:{server.server_port}/status"
    for name, value in given.items():
        monkeypatch.setenv(f"KUBEFLOW_TRAINER_SERVER_{name}", str(value))
    monkeypatch.setattr(status, "_EVERY_S", 0.2)
    monkeypatch.setattr(status, "_TIMEOUT_S", 1.0)
    yield server
    server.goes_on.set()
    server.shutdown()
    server.server_close()


def test_a_trainjob_shows_percent_steps_and_losses(
    tmp_path: Path, examples: Path, controller: Controller
) -> None:
    runner(tmp_path / "run", examples, "in_process")(FITS)
    posts = [TrainerStatus(**body["trainerStatus"]) for _, body in controller.posts]
    assert {token for token, _ in controller.posts} == {"Bearer first"}
    percents = [post.progressPercentage for post in posts if post.progressPercentage is not None]
    assert percents == sorted(percents)
    assert 0 < percents[0] < percents[-1] == 100
    last = {metric["name"]: metric["value"] for metric in posts[-1].metrics}
    assert float(last.pop("loss")) >= 0
    assert last == {"step": "20", "steps": "20", "epoch": "5", "epochs": "5"}
    assert posts[-1].estimatedRemainingSeconds == 0


def test_a_renewed_token_is_read_and_a_failed_training_is_not_complete(
    tmp_path: Path, examples: Path, controller: Controller
) -> None:
    renewal = f"open({str(tmp_path / 'token')!r}, 'w').write('second')"
    with pytest.raises(TrainingError, match="after all"):
        runner(tmp_path / "run", examples, "in_process")(
            f"{FITS}    {renewal}\n    raise ValueError('after all')\n"
        )
    token, body = controller.posts[-1]
    assert token == "Bearer second"
    assert TrainerStatus(**body["trainerStatus"]).estimatedRemainingSeconds != 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("other", "CERTIFICATE"), ("401", "401"), ("hangs", "timed out"), ("gone", "refused")],
)
def test_training_goes_on_whatever_the_controller_does(
    fault: str, reason: str, tmp_path: Path, examples: Path, controller: Controller, caplog: Any
) -> None:
    if fault == "other":
        certificate(tmp_path / "ca.crt")
    elif fault == "401":
        controller.answer = 401
    elif fault == "hangs":
        controller.goes_on.clear()
    else:
        controller.shutdown()
        controller.server_close()
    start_s = time.monotonic()
    job = runner(tmp_path / "run", examples, "in_process")(FITS)
    assert exported(job) and time.monotonic() - start_s < 300
    (warning,) = [r.getMessage() for r in caplog.records if "TrainJob" in r.getMessage()]
    assert reason in warning


def test_what_is_unknown_is_left_out() -> None:
    known = status.status_of(Progress(step=7), is_complete=False)
    assert TrainerStatus(**known).metrics == [{"name": "step", "value": "7"}]
    assert known.keys() == {"metrics", "lastUpdatedTime"}
    # JSON has no NaN, and the schema wants a text.
    curves = {"loss": [(1.0, float("nan"))]}
    (_, loss) = status.status_of(Progress(step=1, curves=curves), is_complete=False)["metrics"]
    assert loss == {"name": "loss", "value": "nan"}
