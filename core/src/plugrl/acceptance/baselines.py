"""The baselines that come with the package: a configuration each, and a reference where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from plugrl.acceptance.reference import Reference, load_reference, parse_reference
from plugrl.errors import DataError, UserError, nearest, one_of

DEFAULT = "quickstart"
_PACKAGE = "plugrl.acceptance"


@dataclass(frozen=True)
class Baseline:
    """A configuration to train, by name and file."""

    name: str
    path: Path


def names() -> list[str]:
    """Return the names of the baselines that come with the package."""
    return sorted(item.name.removesuffix(".yaml") for item in _folder("baselines").iterdir() if _is(item, ".yaml"))


def find_baseline(given: str) -> Baseline:
    """Return a baseline by name, or a configuration of one's own by its file.

    Raises:
        UserError: there is neither; names those that there are.
    """
    known = names()
    if given in known:
        return Baseline(given, Path(str(_folder("baselines") / f"{given}.yaml")))
    path = Path(given).expanduser()
    if path.is_file():
        return Baseline(path.stem, path.absolute())
    close = nearest(given, known)
    hint = f" Did you mean {close}?" if close else ""
    raise UserError(f"--baseline: {given} is neither a file nor the name of a baseline.{hint} Known: {one_of(known)}.")


def find_reference(baseline: str, given: Path | None) -> tuple[Reference, str]:
    """Return the reference in a file, else the one that comes with a baseline, and where it was found.

    Raises:
        DataError: the file is none, or none was given and the baseline has none.
    """
    if given is not None:
        return load_reference(given), str(given)
    item = _folder("references") / f"{baseline}.json"
    if not item.is_file():
        raise DataError(
            f"No reference comes with the baseline {baseline}. Make one on a platform that you trust, with "
            "`plugrl accept --make-reference FILE`, and give it with --reference FILE."
        )
    return parse_reference(item.read_text(encoding="utf-8"), item.name), f"{item.name}, which comes with plugrl"


def _folder(name: str) -> Traversable:
    return resources.files(_PACKAGE).joinpath(name)


def _is(item: Traversable, suffix: str) -> bool:
    return item.is_file() and item.name.endswith(suffix)
