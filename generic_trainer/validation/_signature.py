"""`model.sig`: the signature of a published model, made and verified by OpenSSF's `model-signing`.

It is a Sigstore bundle around an in-toto statement of the SHA-256 of every other file in the
model's directory, `manifest.json` among them. Any other verifier of the format accepts it.
"""

import ast
import os
import re
import warnings
from pathlib import Path
from typing import Any

from generic_trainer._core.files import copy_tree, is_remote, read_whole, write_whole
from generic_trainer.errors import ConfigurationError, ExportError

SIGNATURE = "model.sig"
_DIGEST = re.compile(
    r"""Digest\(algorithm='[^']*', digest_value=(b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")\)"""
)


def signer(private_key: str) -> Any:
    """Returns model-signing's configuration that signs with a key.

    Args:
        private_key: PEM file of an elliptic curve key, P-256, P-384 or P-521, not encrypted.

    Raises:
        ConfigurationError: the key cannot be used, or model-signing cannot be imported.
    """
    return _configured("signing", "use_elliptic_key_signer", "private_key", private_key)


def sign_model(model_dir: str, private_key: str, scratch_dir: str) -> None:
    """Writes `model.sig` into a model directory; an earlier one is replaced.

    Args:
        model_dir: the model's directory, local or remote; all its files are complete.
        private_key: see `signer`.
        scratch_dir: local directory for the signature, and for a copy of a remote model, because
            the library reads local files.

    Raises:
        ConfigurationError: see `signer`.
        ExportError: the model cannot be signed, because it contains a link for example.
    """
    local = model_dir
    if is_remote(model_dir):
        local = os.path.join(scratch_dir, "signed", os.path.basename(model_dir))
        copy_tree(model_dir, local)
    path = os.path.join(scratch_dir, SIGNATURE)
    config = signer(private_key)
    try:
        config.sign(local, path)
    except ValueError as error:
        raise ExportError(f"The model cannot be signed: {error}", path=model_dir) from error
    write_whole(os.path.join(model_dir, SIGNATURE), read_whole(path))


def signature_problem(model_dir: str, public_key: str) -> str | None:
    """Verifies the signature of a local model directory, without importing TensorFlow.

    Args:
        model_dir: the model's directory, with its `model.sig`.
        public_key: PEM file of the public key.

    Returns:
        None if every file is as it was signed and no file was added. Otherwise the reason: the
        changed, missing and added files, or a fault of the signature.

    Raises:
        ConfigurationError: the key cannot be used, or model-signing cannot be imported.
    """
    model = Path(model_dir).resolve()  # the library refuses links
    config = _configured("verifying", "use_elliptic_key_verifier", "public_key", public_key)
    try:
        config.verify(model, model / SIGNATURE)
    except Exception as error:  # damaged signatures raise many classes, some without a message
        return _with_hex_digests(str(error)) or type(error).__name__
    return None


def _with_hex_digests(message: str) -> str:
    """Returns a message in which digests are hexadecimal, as `sha256sum` prints them.

    The library lists the problems as Python prints a list, and digests as it prints bytes.
    """
    kind, separator, listed = message.partition(": [")
    try:
        problems = ast.literal_eval(f"[{listed}") if separator else [message]
        problems = [
            _DIGEST.sub(lambda m: ast.literal_eval(m[1]).hex(), problem) for problem in problems
        ]
    except (SyntaxError, TypeError, ValueError):  # of another form
        return message
    return f"{kind}: {'; '.join(problems)}" if separator else message


def _configured(module: str, use_key: str, argument: str, path: str) -> Any:
    """Returns a configuration of model-signing for all files of a model but the signature."""
    try:
        with warnings.catch_warnings():  # of Google's clients, which are imported if installed
            warnings.simplefilter("ignore")
            import model_signing
    except ImportError as error:
        raise ConfigurationError(
            f"model-signing cannot be imported: {error}. Install the extra `signing`. It needs "
            "urllib3 2; KFP 2.5, of the extra `kfp` beside TFX 1.16, needs urllib3 1."
        ) from error
    try:
        config = getattr(getattr(model_signing, module).Config(), use_key)(**{argument: path})
    except Exception as error:  # keys of other kinds raise AttributeError, for example
        raise ConfigurationError(
            f"The key {path} cannot be used: {error}. Expected a {argument.replace('_', ' ')} of "
            "an elliptic curve (P-256, P-384 or P-521) in PEM format, without a password."
        ) from error
    files = model_signing.hashing.Config()
    files.set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)  # by default it omits .git
    return config.set_hashing_config(files)
