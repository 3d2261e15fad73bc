"""GGUF files: read by transformers once, then kept as a folder in the Hugging Face layout.

Reading one is slow (it dequantises tensor by tensor in Python), and every worker of a run needs it. The converted
folder lies in the user's cache under the file's hash; it appears by one rename, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from plugrl.errors import ConfigError, MissingDependency
from plugrl_models_hf.quiet import quiet

logger = logging.getLogger(__name__)

_LAYOUT = 1
_NEEDED = ("gguf", "accelerate")


def converted_folder(file: Path, cache_dir: str | None = None) -> Path:
    """Return a folder with the fp32 weights, configuration and tokenizer of a GGUF file, converting it if need be.

    One process converts, the others wait for it. Raises MissingDependency without the gguf extra and ConfigError for
    a file that transformers cannot read or a cache that cannot be written.
    """
    root = _cache_root(cache_dir)
    target = root / f"{_digest(file)}-v{_LAYOUT}"
    if target.is_dir():
        return target
    _require_packages(file)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{target.name}.lock"):
            if not target.is_dir():
                _convert(file, target)
    except PermissionError as error:
        raise ConfigError(f"model.cache_dir: cannot write {root} ({error}); name another folder.") from error
    return target


def strip_quantization(model: PreTrainedModel) -> None:
    """Forget that the weights came from a quantised file: they are plain tensors now, and are saved as such."""
    for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer"), (model, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.is_quantized = False


def _convert(file: Path, target: Path) -> None:
    """Write ``target`` whole: into a temporary neighbour first, which is then renamed."""
    logger.warning("Converting %s once into %s; this can take a minute.", file.name, target)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        arguments = {"gguf_file": file.name, "local_files_only": True}
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **arguments)
                tokenizer = AutoTokenizer.from_pretrained(file.parent, **arguments)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ConfigError(f"model.path: transformers cannot read the GGUF file {file}: {error}") from error
        strip_quantization(model)
        with quiet():
            model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _cache_root(cache_dir: str | None) -> Path:
    base = Path(cache_dir).expanduser() if cache_dir else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return base.expanduser() / "plugrl" / "gguf"


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_packages(file: Path) -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"model.path: reading the GGUF file {file.name} needs {' and '.join(missing)}. "
            "Run: pip install 'plugrl-models-hf[gguf]'"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the system releases it when the process dies."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
