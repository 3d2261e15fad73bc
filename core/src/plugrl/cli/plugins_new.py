"""``plugrl plugins new``: a package for new hardware, made from the template that this distribution carries."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from plugrl.cli import console
from plugrl.errors import ConfigError, MissingDependency, PluginError, nearest, one_of

TEMPLATE = Path(__file__).resolve().parents[1] / "template"
KINDS = ("platform",)
MARK = "TO" + "DO"
"""What the template puts before what is left to do, which no source of this repository may have."""
YES_OR_NO = ("yes", "no", "true", "false")


def new(
    kind: str = typer.Argument(..., help="What the plugin brings: platform."),
    answers: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Answers to the template's questions."),
    vendor: str = typer.Option(None, help="The vendor, in lower case: acme."),
    device_type: str = typer.Option(None, help="torch's device type; the vendor's name unless given."),
    output: Path = typer.Option(Path(), help="Folder in which the package's own folder is made."),
    ask: bool = typer.Option(None, "--input/--no-input", help="Ask what is not given; on a terminal by default."),
) -> None:
    """Make a plugin package for new hardware that installs, is listed and passes its own tests."""
    given = parse_answers(answers or ())
    given |= {key: value for key, value in (("vendor", vendor), ("device_type", device_type)) if value is not None}
    _check_free(given)
    folder = generate(kind, given, output, ask=sys.stdin.isatty() if ask is None else ask)
    console.say(
        f"{folder} is made. Next:",
        f"  pip install -e {folder}",
        "  plugrl plugins list",
        f"  plugrl plugins check {folder.name} --level L0",
        f"  grep -rn {MARK} {folder}",
    )


def parse_answers(words: Sequence[str]) -> dict[str, str]:
    """Split ``KEY=VALUE`` words. Raises ConfigError for a word without ``=``."""
    for word in words:
        if "=" not in word:
            raise ConfigError(f'"{word}" is no answer: write KEY=VALUE, such as comm_backend=accl.')
    return dict(word.split("=", 1) for word in words)


def generate(kind: str, given: Mapping[str, str], output: Path, *, ask: bool = False) -> Path:
    """Make a package from the answers, the template's defaults for the others, and return its folder.

    ``ask`` asks for what is not given. Nothing is fetched and nothing is written outside ``output``.

    Raises:
        ConfigError: the kind or a question does not exist, an answer is unfit, or the folder is there already.
        MissingDependency: cookiecutter is not installed.
    """
    if kind not in KINDS:
        raise ConfigError(f'There is no template for "{kind}". There are: {one_of(KINDS)}.')
    _check_questions(given)
    try:
        from cookiecutter.exceptions import CookiecutterException, OutputDirExistsException
        from cookiecutter.generate import generate_context, generate_files
        from cookiecutter.prompt import prompt_for_config
    except ImportError as error:
        raise MissingDependency("Templates need cookiecutter: pip install 'plugrl[new]'") from error
    try:
        context = generate_context(str(TEMPLATE / "cookiecutter.json"), extra_context=dict(given))
        context["cookiecutter"] = prompt_for_config(context, no_input=not ask)
        _check_answers(context["cookiecutter"])
        output.mkdir(parents=True, exist_ok=True)
        return Path(generate_files(TEMPLATE, context, output_dir=output))
    except OutputDirExistsException as error:
        folder = output / context["cookiecutter"]["__folder"]
        raise ConfigError(f"{folder} is there already: remove it first, or give another --output.") from error
    except CookiecutterException as error:
        raise PluginError(f"The template cannot be filled in: {error}") from error


def questions() -> dict[str, Any]:
    """Return the keys that the template asks for, with their defaults."""
    keys = json.loads((TEMPLATE / "cookiecutter.json").read_text())
    return {key: default for key, default in keys.items() if not key.startswith("_")}


def _check_free(given: Mapping[str, str]) -> None:
    """Refuse the name of a plugin that is installed: of two with one name only one can be used."""
    from plugrl.plugins.discovery import discover

    answers = {"device_type": given.get("vendor", ""), **given}
    name = f"platform_{answers.get('platform_name') or answers['device_type']}"
    for plugin in discover():
        if plugin.name == name:
            raise ConfigError(
                f"{name} is installed already, from {plugin.distribution}: give another platform_name, or uninstall it."
            )


def _check_questions(given: Mapping[str, str]) -> None:
    known = questions()
    for key, value in given.items():
        if key not in known:
            like = nearest(key, known)
            hint = f' Did you mean "{like}"?' if like else ""
            raise ConfigError(f'The template does not ask for "{key}".{hint} It asks for: {one_of(known)}.')
        if isinstance(known[key], bool) and value.lower() not in YES_OR_NO:
            raise ConfigError(f"{key} {value!r} must be yes or no.")
        if "{" in value or "}" in value:
            raise ConfigError(f"{key} {value!r} must be without braces.")


def _check_answers(answers: Mapping[str, Any]) -> None:
    found = _rules().problems(answers)
    if found:
        raise ConfigError("\n".join(found))


def _rules() -> ModuleType:
    """Return the module with the rules for answers, which the template's own hook applies too."""
    spec = importlib.util.spec_from_file_location("plugrl_template_rules", TEMPLATE / "hooks" / "pre_gen_project.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
