"""What a Ray head answers to one who submits jobs: the parts of its REST API that that takes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.processes import serving


@dataclass
class Head:
    """What was submitted.

    Attributes:
        url: where the head answers.
        jobs: bodies of the requests.
        packages: name → zip.
    """

    url: str = ""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    packages: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def head() -> Iterator[Head]:
    """Serves on a free port."""
    found = Head()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/api/version":
                return self.answer(200, {"version": "4", "ray_version": "2.55.1"})
            return self.answer(200 if self.path.split("/")[-1] in found.packages else 404, {})

        def do_PUT(self):
            found.packages[self.path.split("/")[-1]] = self.body()
            self.answer(200, {})

        def do_POST(self):
            found.jobs.append(json.loads(self.body()))
            name = found.jobs[-1]["submission_id"]
            self.answer(200, {"submission_id": name, "job_id": name})

        def body(self) -> bytes:
            return self.rfile.read(int(self.headers["Content-Length"]))

        def answer(self, status: int, content: Any) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as found.url:
        yield found
