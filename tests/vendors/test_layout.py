"""The first-party vendor packages are what the template makes of their answers, filled in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cookiecutter")

from plugrl.cli.plugins_new import generate  # noqa: E402

FILLED_IN = re.compile(r"README\.md|docs/.*|src/\w+/(platform|plugin|probe)\.py")
"""What a vendor writes; everything else is as it was made."""

WRITTEN_BY_TOOLS = re.compile(r".*__pycache__.*|.*\.egg-info.*|src/\w+/capabilities\.json")


def files(folder: Path) -> set[str]:
    """The paths of the files below a folder that are part of a package."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if not WRITTEN_BY_TOOLS.fullmatch(path)}


@pytest.fixture
def made(vendor: Any, tmp_path: Path) -> Path:
    """What the template makes of the vendor's answers."""
    words = {True: "yes", False: "no"}
    answers = {key: words.get(value, value) for key, value in vendor.answers.items()}
    return generate("platform", answers, tmp_path)


def test_each_vendor_has_a_device_and_a_name_of_its_own(vendors: list[Any]) -> None:
    keys = {(vendor.answers["device_type"], vendor.answers["vendor"]) for vendor in vendors}
    assert len(keys) == len({vendor.name for vendor in vendors}) == len(vendors) > 6


def test_the_layout_is_the_templates(vendor: Any, made: Path) -> None:
    assert files(vendor.folder) == files(made)
    for name in sorted(files(made)):
        if not FILLED_IN.fullmatch(name):
            assert (vendor.folder / name).read_text() == (made / name).read_text(), name


def manifest(folder: Path) -> Any:
    """The manifest in the source of a package."""
    (path,) = folder.glob("src/*/plugin.py")
    namespace: dict[str, Any] = {}
    exec(path.read_text(), namespace)
    return namespace["plugin"]


def test_the_manifest_is_the_templates_but_for_what_only_the_vendor_knows(vendor: Any, made: Path) -> None:
    ours, theirs = manifest(vendor.folder), manifest(made)
    assert ours.problems() == [] and ours.engines == theirs.engines
    assert (ours.name, ours.summary, ours.requires_core) == (theirs.name, theirs.summary, theirs.requires_core)
    (mine,), (original,) = ours.platforms, theirs.platforms
    assert (mine.name, mine.vendor, mine.device) == (original.name, original.vendor, original.device)
    assert (mine.target, mine.probe) == (original.target, original.probe)
    assert mine.capabilities and set(mine.aliases) >= set(original.aliases)


def test_the_documents_say_what_they_must(vendor: Any) -> None:
    """The files of the guide for vendors, each with its content, and nothing left to do."""
    texts = {name: (vendor.folder / name).read_text() for name in files(vendor.folder) if name.endswith(".md")}
    assert "TODO" not in "".join(texts.values())
    assert "never run on the real hardware" in texts["README.md"]
    answers = vendor.answers
    for word in (answers["device_type"], answers["comm_backend"], answers["ray_resource"]):
        assert f"`{word}`" in texts["docs/README.md"]
    assert answers["visible_devices_env"] in texts["docs/README.md"]
    assert "plugrl plugins doctor" in texts["docs/install_guidance.md"]
    assert f"VERL_PLATFORM={vendor.name} plugrl train" in texts["docs/quick_start.md"]
    assert "## Limits" in texts["docs/faq.md"] and "## Commands that diagnose" in texts["docs/faq.md"]


def test_the_requirements_install_every_package(vendor: Any) -> None:
    root = vendor.folder.parents[1]
    assert f"-e ./plugins/{vendor.folder.name}" in (root / "requirements-dev.txt").read_text()
    assert tomllib.loads((vendor.folder / "pyproject.toml").read_text())["project"]["dependencies"]
