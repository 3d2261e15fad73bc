"""Where weights and tokenizers lie: folders, GGUF files, and files shipped by installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from plugrl.errors import ConfigError, MissingDependency
from plugrl_models_hf.config import CausalLMConfig

PACKAGE_PREFIX = "package:"
GGUF_SUFFIX = ".gguf"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A resolved place: a folder in the Hugging Face layout, or one GGUF file."""

    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file rather than a folder."""
        return self.path.suffix.lower() == GGUF_SUFFIX


def resolve_path(text: str, key: str) -> Path:
    """Return the file or folder that ``text`` names; ``key`` is the configuration key, for messages.

    ``package:NAME/FILE`` is FILE inside the installed package NAME, found without importing it. Raises
    MissingDependency when the package is not installed and ConfigError when nothing lies there.
    """
    path = _package_file(text, key) if text.startswith(PACKAGE_PREFIX) else Path(text).expanduser()
    if path.exists():
        return path
    raise ConfigError(
        f"{key}: no file or folder {text!r}. Names of a model hub are not downloaded: fetch the model first, "
        f"for example with `hf download {text} --local-dir FOLDER`, and give the folder."
        if _looks_like_hub_name(text)
        else f"{key}: no file or folder {text!r}."
    )


def model_source(cfg: CausalLMConfig) -> Source:
    """Return where the weights of ``cfg`` lie. ``cfg.path`` must be given.

    Raises ConfigError for a missing file or a folder without a configuration.
    """
    if cfg.path is None:
        raise ConfigError("model.path: not given; the model is built from model.config.")
    path = resolve_path(cfg.path, "model.path")
    if cfg.gguf_file is not None:
        path = path / cfg.gguf_file
        if not path.is_file():
            raise ConfigError(f"model.gguf_file: no file {cfg.gguf_file!r} in {cfg.path}.")
    source = Source(path=path)
    if path.is_file() and not source.is_gguf:
        raise ConfigError(f"model.path: {cfg.path} is a file that is not a GGUF file; give the folder it lies in.")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"model.path: the folder {cfg.path} has no config.json.{_gguf_hint(path)}")
    return source


def _package_file(text: str, key: str) -> Path:
    name, _, inside = text.removeprefix(PACKAGE_PREFIX).partition("/")
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None:
        raise MissingDependency(
            f"{key}: {text!r} lies in the package {name!r}, which is not installed. "
            f"Run: pip install --no-deps {name.replace('_', '-')}"
        )
    for folder in spec.submodule_search_locations or ():
        if (Path(folder) / inside).exists():
            return Path(folder) / inside
    raise ConfigError(f"{key}: the installed package {name!r} has no file {inside!r}.")


def _looks_like_hub_name(text: str) -> bool:
    return text.count("/") == 1 and not text.startswith((".", "/", "~", PACKAGE_PREFIX))


def _gguf_hint(folder: Path) -> str:
    files = sorted(path.name for path in folder.glob(f"*{GGUF_SUFFIX}"))
    return f" It holds {files[0]}: set model.gguf_file={files[0]}." if files else ""
