"""What the documentation names exists, and what must be documented is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from plugrl import environment
from plugrl.algorithms.registry import EMBODIED
from plugrl.cli.commands import app
from plugrl.config import load_config
from plugrl.config.aliases import canonical
from plugrl.config.loader import load_schema
from plugrl.config.messages import key_paths
from plugrl.config.schema import EmbodiedModelConfig, RunConfig
from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES
from plugrl.plugins import Plugin, hookspecs, load_plugins
from plugrl.plugins.ledger import State
from plugrl.plugins.manifest import CONTRIBUTIONS
from plugrl.registry import registry_of

EXAMPLE = "examples/quickstart.yaml"
TOP_FOLDERS = ("core/", "plugins/", "tests/", "docs/", "examples/", "benchmarks/", ".ci/")
EVERYWHERE = {"--help", "--debug", "--version"}
WITH_CONFIG = ("train", "demos", "sft", "eval", "config show", "config check", "config wrap-plan")
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(=[A-Z_]+)?(\.\.\.)?|\[.*")


@pytest.fixture(autouse=True)
def at_the_root(docs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of the documentation are typed at the root of the repository."""
    monkeypatch.chdir(docs.root)


def leaf_commands(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command of the command line by its words."""
    if not hasattr(command, "list_commands"):
        return {path: command}
    context = typer.Context(command)
    found: dict[tuple[str, ...], Any] = {}
    for name in command.list_commands(context):
        found |= leaf_commands(command.get_command(context, name), (*path, name))
    return found


@pytest.fixture(scope="module")
def command_line() -> dict[tuple[str, ...], Any]:
    """The commands of ``plugrl``."""
    return leaf_commands(typer.main.get_command(app))


def split_command(words: tuple[str, ...], known: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The longest beginning that is a command, and the rest."""
    for length in (2, 1):
        if words[:length] in known:
            return words[:length], words[length:]
    return (), words


def option_problems(words: tuple[str, ...], rest: tuple[str, ...], command: Any) -> list[str]:
    """Options that the command does not have; overrides in the -- form are no options."""
    options = {name for parameter in command.params for name in getattr(parameter, "opts", ())} | EVERYWHERE
    given = [word for word in rest if word.startswith("-") and not (" ".join(words) in WITH_CONFIG and "=" in word)]
    return [word for word in given if word.partition("=")[0] not in options]


# --------------------------------------------------------------------- commands
def test_every_plugrl_command_exists_with_its_options(docs: Any, command_line: Any) -> None:
    written = [(str(item), item.words[1:]) for item in docs.commands() if item.words[0].endswith("plugrl")]
    for name in docs["README.md"].first_column(title="command"):
        written.append((f"README.md: {name}", tuple(name.split()[1:])))
    assert len(written) > 30
    wrong = []
    for title, words in written:
        command, rest = split_command(words, command_line)
        wrong += [f"{title}: no such command"] if not command else []
        wrong += [f"{title}: no option {o}" for o in option_problems(command, rest, command_line[command]) if command]
    assert not wrong, "\n".join(wrong)


def test_the_readme_lists_every_command(docs: Any, command_line: Any) -> None:
    listed = [tuple(name.split()[1:]) for name in docs["README.md"].first_column(title="command")]
    assert {split_command(words, command_line)[0] for words in listed} == set(command_line)


def test_configurations_and_overrides_in_commands_are_valid(docs: Any, command_line: Any) -> None:
    checked = 0
    for item in docs.commands():
        command, rest = split_command(item.words[1:], command_line)
        name = " ".join(command)
        if not item.words[0].endswith("plugrl") or name not in WITH_CONFIG or PLACEHOLDER.fullmatch(rest[0]):
            continue
        if rest[0].startswith("--"):
            continue  # A checkpoint's configuration: see tests/sft.
        if any(word.startswith("reward.name=") for word in rest):
            continue  # Names of the plugins that the pages teach to write: see test_snippets.py.
        overrides = [word for word in rest[1:] if "=" in word]
        load_config(rest[0], overrides, task=name if name in ("sft", "eval") else "train")
        checked += 1
    assert checked >= 8


def test_make_targets_exist(docs: Any) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (docs.root / "Makefile").read_text(), re.MULTILINE))
    spans = [(page, span) for page in docs.pages.values() for span in page.code_spans]
    written = [(item.page, " ".join(item.words)) for item in docs.commands()] + spans
    named = [(page, text.split()[1]) for page, text in written if re.fullmatch(r"make [a-z-]+", text)]
    assert len(named) > 5
    assert not [f"{page.path}: make {target}" for page, target in named if target not in targets]


def test_files_and_links_exist(docs: Any) -> None:
    wrong = []
    for page in docs.pages.values():
        wrong += [f"{page.path}: {link}" for link in page.links if not (page.path.parent / link).exists()]
        named = [span for span in page.code_spans if span.startswith(TOP_FOLDERS) and " " not in span]
        wrong += [f"{page.path}: {name}" for name in named if "NAME" not in name and not (docs.root / name).exists()]
    for item in docs.commands():
        paths = [word for word in item.words if word.removeprefix("./").startswith(TOP_FOLDERS)]
        wrong += [f"{item}: {path}" for path in paths if not (docs.root / path).exists()]
    assert not wrong, "\n".join(wrong)


def test_every_module_path_in_backticks_leads_somewhere(docs: Any) -> None:
    from plugrl.targets import import_target

    names = {(page, s) for page in docs.pages.values() for s in page.code_spans if re.fullmatch(r"plugrl\.[\w.]+", s)}
    names = {(page, name) for page, name in names if name != "plugrl.plugins" or page.path.name != "CONTRIBUTING.md"}
    wrong = []
    for page, name in sorted(names, key=lambda pair: pair[1]):
        try:
            __import__(name)
        except ImportError:
            module, _, attribute = name.rpartition(".")
            try:
                import_target(f"{module}:{attribute}")
            except Exception as error:  # whatever goes wrong is what the reader would meet
                wrong.append(f"{page.path}: {name}: {error}")
    assert not wrong, "\n".join(wrong)


# --------------------------------------------------------------------- configurations
def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The base with the keys of a part; a model of another source replaces the base's."""
    result = dict(base)
    for key, value in part.items():
        keeps = isinstance(value, dict) and isinstance(result.get(key), dict) and not {"path", "config"} & value.keys()
        result[key] = merged(result[key], value) if keeps else value
    return result


def test_every_yaml_block_is_a_valid_configuration(docs: Any, tmp_path: Path) -> None:
    """A complete one by itself; a part on top of the quickstart, without the plugins it may only name."""
    found = docs.blocks("yaml")
    assert len(found) > 6
    complete = 0
    for page, text in found:
        values = yaml.safe_load(text)
        is_complete = {"model", "data", "actor", "rollout", "reward", "trainer"} <= values.keys()
        complete += is_complete
        base = {} if is_complete else yaml.safe_load((docs.root / EXAMPLE).read_text())
        path = tmp_path / "block.yaml"
        path.write_text(yaml.safe_dump(merged(base, values)))
        try:
            load_config(path)
        except ValueError as error:
            pytest.fail(f"{page.path}: {error}\n{text}")
    assert complete


def test_sections_of_the_configuration_are_documented(docs: Any) -> None:
    assert docs["docs/configuration.md"].first_column(heading="Sections") == list(RunConfig.model_fields)
    assert docs["core/README.md"].first_column(title="key") == list(RunConfig.model_fields)


@pytest.mark.parametrize(
    ("package", "prefix"),
    [("engine_fsdp", "actor.fsdp_config"), ("models_hf", "model"), ("rollout_hf", "rollout.options")],
)
def test_keys_of_plugins_are_documented(docs: Any, package: str, prefix: str) -> None:
    keys = {".".join(path) for path in key_paths(load_schema(docs.root / EXAMPLE))}
    owned = {key.removeprefix("actor.") for key in keys if key.startswith(f"{prefix}.")}
    written = docs[f"plugins/{package}/README.md"].first_column(heading="Configuration keys")
    assert set(written) == owned and len(written) == len(owned)


def test_keys_named_in_backticks_exist(docs: Any) -> None:
    keys = {".".join(path) for path in key_paths(load_schema(docs.root / EXAMPLE))}
    keys |= {f"model.{name}" for name in EmbodiedModelConfig.model_fields}
    sections = "|".join(RunConfig.model_fields)
    key = re.compile(rf"(?:{sections})\.[a-z][\w.]*")
    wrong = []
    for page in docs.pages.values():
        named = {match[0] for span in page.code_spans if (match := key.match(span))}
        named = {".".join(canonical(tuple(name.rstrip(".").split(".")))) for name in named}
        named -= {name for name in named if name.endswith((".py", ".yaml", ".jsonl", ".json", ".html", ".safetensors"))}
        named -= set(PLATFORM_CAPABILITIES)  # some of which begin as a section of the configuration does
        free = ("reward.reward_kwargs.", "data.source_options.", "cluster.component_placement.", "critic.model.")
        wrong += [f"{page.path}: {n}" for n in named if n not in keys and not n.startswith(free)]
    assert not wrong, "\n".join(sorted(wrong))


# --------------------------------------------------------------------- what must be documented
def built_in(kind: str) -> set[str]:
    """The names of one kind that the core registers itself; what works in environments is a kind of its own."""
    load_plugins(quiet=True)
    registry = registry_of(kind.removeprefix("embodied "))
    names = {str(key) for key in registry.keys() if registry.entry(key).origin.source == "built-in"}
    ours = {name for name in names if name.startswith(EMBODIED)}
    return {name.removeprefix(EMBODIED) for name in ours} if kind.startswith("embodied ") else names - ours


@pytest.mark.parametrize(
    ("kind", "page", "heading"),
    [
        ("advantage", "docs/algorithms.md", "Advantage estimators"),
        ("loss", "docs/algorithms.md", "Policy losses"),
        ("embodied advantage", "docs/embodied-algorithms.md", "Advantages"),
        ("embodied loss", "docs/embodied-algorithms.md", "Losses"),
        ("reward", "docs/algorithms.md", "Rewards"),
        ("dataset", "docs/configuration.md", "Data"),
        ("logger", "docs/run-record.md", "Loggers"),
    ],
)
def test_everything_registered_is_documented(docs: Any, kind: str, page: str, heading: str) -> None:
    written = docs[page].first_column(heading=heading)
    assert set(written) == built_in(kind) and len(written) == len(set(written))


def test_divergences_and_aggregations_are_documented(docs: Any) -> None:
    from plugrl.algorithms.aggregation import MODES
    from plugrl.algorithms.divergence import KINDS

    assert docs["docs/algorithms.md"].first_column(heading="KL estimators") == list(KINDS)
    assert docs["docs/algorithms.md"].first_column(heading="Aggregation") == list(MODES)


def test_options_of_estimators_losses_and_rewards_are_documented(docs: Any) -> None:
    """An option that only one of them has must be named on the page; those that the loops give are explained there."""
    from plugrl.algorithms import registry
    from plugrl.algorithms.embodied import registry as embodied

    given = registry.ADVANTAGE_KEYWORDS | registry.LOSS_KEYWORDS | registry.AGGREGATION_KEYWORDS
    given |= embodied.ADVANTAGE_KEYWORDS | embodied.LOSS_KEYWORDS - {"behave_weight_threshold"}
    internal = {"epsilon", "generator", "reward_components", "old_log_probs", "mask"}
    for kind in (registry.advantages, registry.losses):
        for name in kind.keys():
            page = "embodied-algorithms" if name.startswith(EMBODIED) else "algorithms"
            text = docs[f"docs/{page}.md"].text
            options = (registry.declared_keywords(kind.get(name)) or frozenset()) - given - internal
            assert not [option for option in options if f"`{option}`" not in text], (name, options)


def test_every_variable_is_documented(docs: Any) -> None:
    variables = [*environment.SEED_VARIABLES, *environment.OWN_VARIABLES]
    assert docs["docs/plugins.md"].first_column(heading="Variables") == variables
    used = {name for item in docs.commands() for name in item.variables}
    assert used <= {*variables, "PYTHONPATH"}


def test_every_hook_is_documented(docs: Any) -> None:
    marked = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
    written = docs["docs/plugins.md"].first_column(heading="Hooks")
    assert [name.partition("(")[0] for name in written] == marked
    for text in written:
        name, _, arguments = text.partition("(")
        wanted = getattr(hookspecs, name).__code__
        assert arguments.rstrip(")") == ", ".join(wanted.co_varnames[: wanted.co_argcount]), text


def test_states_and_contributions_of_plugins_are_documented(docs: Any) -> None:
    page = docs["docs/plugins.md"]
    assert page.first_column(heading="States") == list(State.__args__)
    assert page.first_column(title="field of `Plugin`") == list(CONTRIBUTIONS)
    rest = Plugin.__dataclass_fields__.keys() - CONTRIBUTIONS.keys()
    assert not [name for name in rest if f"`{name}`" not in page.text and f"{name}=" not in page.text]


def test_every_phase_that_is_timed_is_documented(docs: Any) -> None:
    sources = (docs.root / "core/src/plugrl/runners").glob("*.py")
    timed = {name for path in sources for name in re.findall(r'\.(?:timed|add)\("(\w+)"', path.read_text())}
    page = docs["docs/run-record.md"]
    assert set(page.first_column(title="phase")) == timed | {"step"}


def test_layers_are_those_of_the_rule(docs: Any) -> None:
    """CONTRIBUTING.md and tests/rules/test_layers.py say the same."""
    source = (docs.root / "tests/rules/test_layers.py").read_text()
    body = re.search(r"LAYERS.*?= \(\n(.*?)^\)", source, re.MULTILINE | re.DOTALL)
    assert body is not None
    expected = [re.findall(r'"([a-z]\w*)"', line) for line in body[1].splitlines() if '"' in line]
    rows = next(rows for _, (titles, *rows) in docs["CONTRIBUTING.md"].tables() if titles[0] == "layer")
    assert [row[1].partition(":")[0].split(", ") for row in rows] == expected


def test_every_rule_of_the_repository_is_listed(docs: Any) -> None:
    named = set(docs["CONTRIBUTING.md"].code_spans)
    rules = {str(path.relative_to(docs.root)) for path in (docs.root / "tests/rules").glob("test_*.py")}
    assert rules <= named, f"not in CONTRIBUTING.md: {rules - named}"


# --------------------------------------------------------------------- form
def test_pages_have_one_title_and_short_lines(docs: Any) -> None:
    wrong = []
    for name, page in docs.pages.items():
        titles = [line for line in page.prose.splitlines() if line.startswith("# ")]
        wrong += [f"{name}: {len(titles)} titles"] if len(titles) != 1 else []
        wrong += [f"{name}:{n}" for n, line in enumerate(page.text.splitlines(), 1) if _is_too_long(line)]
        wrong += [f"{name}: {c!r}" for c in {c for c in page.text if ord(c) > 127}]
    assert not wrong, "\n".join(wrong)


def _is_too_long(line: str) -> bool:
    return len(line) > 120 and not line.startswith("|") and not re.match(r"([A-Z_]+=\S* )*plugrl ", line)
