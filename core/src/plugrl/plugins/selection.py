"""Which of the installed plugins may load: the variable, the allow and deny lists, and what a run requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plugrl.environment import split_list
from plugrl.errors import PluginError, nearest, one_of
from plugrl.plugins.discovery import Discovered, normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from plugrl.plugins.ledger import Ledger, PluginRecord


@dataclass(frozen=True, kw_only=True)
class PluginSettings:
    """The section ``plugins`` of the configuration.

    ``allow`` None admits all, an empty one none. ``required`` holds requirement strings of distributions or plugins:
    ``plugrl-platform-acme>=0.2``.
    """

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rule:
    """One stated list. ``shown`` is how a message names it."""

    shown: str
    names: tuple[str, ...]
    is_allow: bool

    def refuses(self, plugin: Discovered) -> bool:
        listed = any(normalize(name) in plugin.names for name in self.names)
        return listed != self.is_allow


@dataclass(frozen=True)
class Filter:
    """Every list that is in force. A plugin loads only if each of them admits it."""

    rules: tuple[_Rule, ...]

    @classmethod
    def build(cls, variable: str | None, settings: PluginSettings) -> Filter:
        """Make the filter of ``PLUGRL_PLUGINS`` (None when unset) and the configuration."""
        rules: list[_Rule] = []
        if variable is not None:
            items = split_list(variable)
            allowed = tuple(item for item in items if not item.startswith("-"))
            denied = tuple(item.removeprefix("-") for item in items if item.startswith("-"))
            shown = f"PLUGRL_PLUGINS={variable}"
            if allowed or not denied:
                rules.append(_Rule(shown, allowed, is_allow=True))
            if denied:
                rules.append(_Rule(shown, denied, is_allow=False))
        if settings.allow is not None:
            rules.append(_Rule("plugins.allow", settings.allow, is_allow=True))
        if settings.deny:
            rules.append(_Rule("plugins.deny", settings.deny, is_allow=False))
        return cls(tuple(rules))

    def refusal(self, plugin: Discovered) -> str | None:
        """Return the list that keeps the plugin out, None if all admit it."""
        return next((rule.shown for rule in self.rules if rule.refuses(plugin)), None)

    def unmatched(self, found: Sequence[Discovered]) -> list[PluginError]:
        """Return one error per allow-list item that no installed plugin has as its name."""
        return [PluginError(text) for rule, text, _ in self._unknown(found) if rule.is_allow]

    def doubtful(self, found: Sequence[Discovered]) -> list[str]:
        """Return a warning per deny-list item that nothing has as its name but something nearly: a slip of the pen.

        Others are no mistake: one list may serve machines with different plugins.
        """
        return [text for rule, text, like in self._unknown(found) if not rule.is_allow and like is not None]

    def _unknown(self, found: Sequence[Discovered]) -> Iterator[tuple[_Rule, str, str | None]]:
        """Yield each listed name that is not installed: its rule, a message, and the nearest installed name."""
        known = sorted({name for plugin in found for name in plugin.names})
        for rule in self.rules:
            for name in rule.names:
                if normalize(name) not in known:
                    like = nearest(normalize(name), known)
                    yield rule, _unmatched_text(rule.shown, name, like, found), like


def missing_requirements(required: Iterable[str], ledger: Ledger) -> list[PluginError]:
    """Return one error per required plugin that is not active in the wanted version, naming what keeps it out."""
    errors = (_requirement_error(requirement, ledger) for requirement in required)
    return [error for error in errors if error is not None]


def _requirement_error(text: str, ledger: Ledger) -> PluginError | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        return PluginError(f'plugins.required: "{text}" is no requirement such as plugrl-platform-acme>=0.2 ({error}).')
    asks = f"plugins.required asks for {text}; "
    records = [record for record in ledger.records if normalize(requirement.name) in record.names]
    if not records:
        like = nearest(requirement.name, [name for record in ledger.records for name in record.names])
        hint = f" Did you mean {like}?" if like else ""
        return PluginError(f"{asks}it is not installed.{hint} Install it with: pip install '{text}'")
    active = [record for record in records if record.state == "active"]
    if not active:
        return _inactive_error(asks, records[0])
    version = active[0].version
    if version and not _satisfies(version, requirement):
        return PluginError(f"{asks}{version} is installed. Install it with: pip install '{text}'")
    return None


def _satisfies(version: str, requirement: Requirement) -> bool:
    from packaging.version import InvalidVersion

    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # Metadata may hold any text; it satisfies only a requirement without a range.
        return not requirement.specifier


def _inactive_error(asks: str, record: PluginRecord) -> PluginError:
    error = PluginError(f"{asks}{record.sentence()}")
    error.__cause__ = record.error
    return error


def _unmatched_text(shown: str, name: str, like: str | None, found: Sequence[Discovered]) -> str:
    hint = f' Did you mean "{like}"?' if like else ""
    return f'{shown}: no plugin "{name}" is installed.{hint} Installed: {one_of(plugin.name for plugin in found)}.'
