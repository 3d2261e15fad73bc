"""The template for hardware plugins: what it makes for each answer, what it refuses, and that the result works."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cookiecutter")

from plugrl.cli.plugins_new import TEMPLATE, generate, parse_answers, questions
from plugrl.errors import ConfigError, MissingDependency

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = {
    *("README.md", "pyproject.toml", "docs/README.md", "docs/faq.md", "docs/install_guidance.md"),
    *("docs/quick_start.md", "src/plugrl_platform_acme/__init__.py", "src/plugrl_platform_acme/platform.py"),
    *("src/plugrl_platform_acme/plugin.py", "src/plugrl_platform_acme/probe.py"),
    *("tests/test_conformance.py", "tests/test_device.py", "tests/test_platform.py"),
}
IF_YES = {
    "with_engine": {f"src/plugrl_platform_acme/engines/{name}.py" for name in ("__init__", "fsdp", "megatron")},
    "with_ci": {".github/workflows/test.yml"},
}
BACKENDS = {"fsdp2", "fsdp", "ddp", "megatron"}
CHOICES = ("with_engine", "with_ci", "cuda_compatible", "average_reduction")
LEFT_OVER = re.compile(r"\{\{|\{%|%\}|cookiecutter")


def files(folder: Path) -> set[str]:
    """The paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def every_choice(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, ...], Path]:
    """A package for each combination of the yes/no questions."""
    made = {}
    for answers in itertools.product((True, False), repeat=len(CHOICES)):
        given = dict(zip(CHOICES, ("yes" if answer else "no" for answer in answers), strict=True))
        made[answers] = generate("platform", {"vendor": "acme", **given}, tmp_path_factory.mktemp("choice"))
    return made


def test_each_answer_gives_exactly_its_files(every_choice: dict[tuple[bool, ...], Path]) -> None:
    for answers, folder in every_choice.items():
        given = dict(zip(CHOICES, answers, strict=True))
        wanted = ALWAYS.union(*(paths for name, paths in IF_YES.items() if given[name]))
        assert files(folder) == wanted, given
        assert (folder / ".github").exists() == given["with_ci"]


def test_nothing_of_the_template_is_left_and_all_of_it_parses(every_choice: dict[tuple[bool, ...], Path]) -> None:
    for answers, folder in every_choice.items():
        for name in files(folder):
            text = (folder / name).read_text()
            assert not LEFT_OVER.search(text), f"{name} of {answers}"
            assert text.endswith("\n") and not text.endswith("\n\n"), f"{name} of {answers}"
            if name.endswith(".py"):
                ast.parse(text, name)
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        recorded = project["tool"]["plugrl-template"]
        assert list(recorded) == list(questions())
        assert tuple(recorded[name] for name in CHOICES) == answers


def test_every_manifest_is_sound_and_says_what_was_answered(every_choice: dict[tuple[bool, ...], Path]) -> None:
    for (engine, _, compatible, _), folder in every_choice.items():
        namespace: dict[str, Any] = {}
        exec((folder / "src/plugrl_platform_acme/plugin.py").read_text(), namespace)
        plugin = namespace["plugin"]
        (platform,) = plugin.platforms
        assert plugin.problems() == [] and plugin.name == "platform_acme"
        assert {entry.backend for entry in plugin.engines} == (BACKENDS if engine else set())
        assert all(entry.needs for entry in plugin.engines)
        assert (platform.device == "acme", platform.priority) == (not compatible, 60 if compatible else 50)


def test_ruff_finds_nothing(every_choice: dict[tuple[bool, ...], Path]) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *map(str, every_choice.values())], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_nothing(every_choice: dict[tuple[bool, ...], Path], tmp_path: Path) -> None:
    """Against the core's own types; torch and the engines are taken as they are."""
    settings = tmp_path / "mypy.ini"
    skipped = "follow_imports = skip\nignore_missing_imports = True\n"
    others = ("torch", "ray", "plugrl_engine_fsdp", "plugrl_engine_megatron")
    settings.write_text(
        f"[mypy]\nmypy_path = {ROOT / 'core' / 'src'}\ndisallow_untyped_defs = True\n"
        f"warn_redundant_casts = True\nfollow_imports = silent\n"
        + "".join(f"[mypy-{name}.*]\n{skipped}" for name in others)
    )
    folder = every_choice[True, True, True, False]
    command = ["mypy", "--config-file", str(settings), "--cache-dir", str(tmp_path), str(folder / "src")]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"vendor": "Acme"}, ("vendor 'Acme'", "lower-case", "such as acme")),
        ({"vendor": "acme corp"}, ("vendor 'acme corp'", "such as acme_corp")),
        ({"vendor": "Foo Chips", "license": "?"}, ("vendor 'Foo Chips'", "\nlicense '?'")),
        ({"vendor": "3d"}, ("vendor '3d'", "beginning with a letter")),
        ({"vendor": ""}, ("vendor ''",)),
        ({"vendor": "cpu"}, ("'cpu' is reserved",)),
        ({"vendor": "acme", "device_type": "meta"}, ("device_type 'meta' is reserved",)),
        ({"vendor": "class"}, ("'class' is reserved",)),
        ({"vendor": "acme", "torch_extension": "torch acme"}, ("torch_extension", "module")),
        ({"vendor": "acme", "visible_devices_env": "acme-mask"}, ("visible_devices_env", "upper case")),
        ({"vendor": "acme", "smi_command": "acme-smi; true"}, ("smi_command", "without arguments")),
        ({"vendor": "acme", "summary": 'say "hi"'}, ("summary", "one line")),
        ({"vendor": "acme", "author": "{{ evil }}"}, ("author", "without braces")),
        ({"vendor": "acme", "with_engine": "perhaps"}, ("with_engine 'perhaps'", "yes or no")),
        ({"vendor": "acme", "with_engin": "no"}, ("with_engin", 'Did you mean "with_engine"')),
    ],
)
def test_unfit_answers_are_refused_before_anything_is_written(
    given: dict[str, str], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        generate("platform", given, tmp_path / "made")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert len(str(caught.value).splitlines()) == sum("\n" in word for word in words) + 1, str(caught.value)
    assert not (tmp_path / "made").exists()


def test_the_name_of_an_installed_plugin_is_not_given_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plugrl", "plugins", "new", "platform", "--vendor", "vdev", "--no-input"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "made")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1 and not (tmp_path / "made").exists()
    assert "platform_vdev is installed already, from plugrl-platform-vdev" in done.stderr


def test_other_mistakes_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match='no template for "engine".*platform'):
        generate("engine", {}, tmp_path)
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_answers(["comm_backend"])
    generate("platform", {"vendor": "acme"}, tmp_path)
    with pytest.raises(ConfigError, match="platform_acme is there already"):
        generate("platform", {"vendor": "acme"}, tmp_path)
    monkeypatch.setitem(sys.modules, "cookiecutter.exceptions", None)
    with pytest.raises(MissingDependency, match=r"pip install 'plugrl\[new\]'"):
        generate("platform", {"vendor": "acme"}, tmp_path)


def test_cookiecutter_itself_makes_the_same_and_refuses_the_same(tmp_path: Path, acme: Path) -> None:
    """Who knows cookiecutter needs no plugrl for it."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"cookiecutters_dir: {tmp_path}\nreplay_dir: {tmp_path / 'replay'}\n")
    command = [sys.executable, "-m", "cookiecutter", "--no-input", "--config-file", str(settings), "-o", str(tmp_path)]
    done = subprocess.run([*command, str(TEMPLATE), "vendor=acme"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "platform_acme"
    assert files(made) == files(acme)
    assert all((made / name).read_text() == (acme / name).read_text() for name in files(made))
    done = subprocess.run([*command, str(TEMPLATE), "vendor=Acme"], capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "vendor 'Acme'" in done.stderr and not (tmp_path / "platform_Acme").exists()


def test_the_wheel_of_the_core_carries_the_template(tmp_path: Path, acme: Path) -> None:
    """In the source tree by a link, in the wheel by files; the command works from there, offline."""
    assert files(TEMPLATE) == files(ROOT / "template") and TEMPLATE.resolve() == ROOT / "template"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "core", capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("plugrl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert files(tmp_path / "unpacked" / "plugrl" / "template") == files(ROOT / "template")
    command = [sys.executable, "-m", "plugrl", "plugins", "new", "platform", "--vendor", "acme", "--no-input"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "made")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "unpacked"), "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "made" / "platform_acme") == files(acme) and not (tmp_path / "home").exists()
