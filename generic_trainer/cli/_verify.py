"""`generic-trainer verify`: the signature of a published model.

::

    $ generic-trainer verify serving/1700000000 --key public.pem
    serving/1700000000: Signature mismatch: Extra files found in model '1700000000': added
    $ echo $?
    1
"""

import argparse
import json
from typing import Any

from generic_trainer._core.files import is_remote
from generic_trainer.cli._options import add_command, require_files
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation import signature_problem


def add_to(commands: Any) -> None:
    """Adds the command to the program."""
    parser = add_command(
        commands,
        _verify,
        "Verify the signature of a published model",
        "Compares every file with the signature in model.sig, which "
        "GenericTrainer(sign_with=...) or `generic-trainer run --sign-with` has written, and "
        "names changed, missing and added files. The exit status is 1 if there are any. The "
        "model is not loaded.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="local directory of the model: .../Format-Serving, or a copy of it",
    )
    parser.add_argument(
        "--key", metavar="FILE", required=True, help="the public key, in PEM format"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _verify(options: argparse.Namespace) -> int:
    require_files(MODEL=options.model, key=options.key)
    if is_remote(options.model):
        raise ConfigurationError(f"MODEL: {options.model} is remote: copy it to a local directory")
    problem = signature_problem(options.model, options.key)
    if options.json:
        print(json.dumps({"verified": problem is None, "problem": problem}))
    else:
        print(f"{options.model}: {problem or 'every file is as it was signed'}")
    return int(problem is not None)
