"""A job as text, for workers in other processes and on other machines."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from typing import Any

from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._request import ExamplesFormat, TrainingRequest
from generic_trainer.user_code import UserCode
from generic_trainer.validation import ServingContract

__all__ = ["job_from_json", "job_to_json"]

_PICKLED = "__pickled__"


def job_to_json(job: Job) -> str:
    """Returns a job as JSON.

    What JSON cannot hold (a proto in `custom_config`, for example) is pickled inside it.
    """
    request = {
        field.name: getattr(job.request, field.name) for field in dataclasses.fields(job.request)
    }
    request["user_code"] = dataclasses.asdict(job.request.user_code)
    request["examples_format"] = dataclasses.asdict(job.request.examples_format)
    request["contract"] = job.request.contract and job.request.contract.to_json()
    values = {
        "request": request,
        "fn_args_factory": job.fn_args_factory,
        "distribution": job.distribution.to_json(),
        "rehearsal_dir": job.rehearsal_dir,
    }
    return json.dumps(values, default=_pickled)


def job_from_json(text: str) -> Job:
    """Reads what `job_to_json` wrote; do not read what others wrote."""
    values = json.loads(text, object_hook=_unpickled)
    request = values["request"]
    request["user_code"] = UserCode(**request["user_code"])
    request["examples_format"] = ExamplesFormat(**request["examples_format"])
    request["contract"] = request["contract"] and ServingContract.from_json(request["contract"])
    for name in ("train_files", "eval_files"):
        request[name] = tuple(request[name])
    for name in ("split_files", "extra_inputs"):
        request[name] = {key: tuple(items) for key, items in request[name].items()}
    return Job(
        request=TrainingRequest(**request),
        fn_args_factory=values["fn_args_factory"],
        distribution=Distribution.from_json(values["distribution"]),
        rehearsal_dir=values["rehearsal_dir"],
    )


def _pickled(value: Any) -> dict[str, str]:
    return {_PICKLED: base64.b64encode(pickle.dumps(value)).decode()}


def _unpickled(item: dict[str, Any]) -> Any:
    if item.keys() != {_PICKLED}:
        return item
    return pickle.loads(base64.b64decode(item[_PICKLED]))
