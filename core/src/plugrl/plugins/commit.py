"""From claims to registries: decide who may have what, then write platforms first and the rest after.

A plugin gets all of its claims or none. Claims are tried in a fixed order, so that the outcome is the same however the
file system lists the plugins: those that override nothing come first, then those that use ``force``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from plugrl.errors import PluginError
from plugrl.plugins.stage import Claim, Staged, forget_modules
from plugrl.registry import Registry

FIRST_KIND = "platform"


def commit(staged: Sequence[Staged]) -> tuple[list[Staged], list[str]]:
    """Write the claims of every active plugin; return all plugins, now with their final state, and warnings.

    A plugin with a refused claim becomes failed in phase ``commit`` and leaves nothing behind.
    """
    outcome = {item.found: item for item in staged}
    order = sorted((item for item in staged if item.record.state == "active"), key=lambda item: item.forces)
    accepted = []
    with ExitStack() as trial:
        for registry in _touched(order):
            trial.enter_context(registry.temporary())
        for item in order:
            try:
                apply_all(item.claims)
            except PluginError as error:
                outcome[item.found] = item.failed("commit", error)
                forget_modules(item.claims)
            else:
                accepted.append(item)
    claims = [claim for item in accepted for claim in item.claims]
    return list(outcome.values()), apply_all(claims)


def apply_all(claims: Iterable[Claim]) -> list[str]:
    """Write all claims, platforms first, or none; return what is worth a warning.

    Raises:
        PluginError: a claim was refused.
    """
    ordered = sorted(claims, key=lambda claim: claim[0].kind != FIRST_KIND)
    before = [(registry, registry.snapshot()) for registry in dict.fromkeys(registry for registry, _ in ordered)]
    notes: list[str] = []
    try:
        for registry, claim in ordered:
            notes += registry.apply([claim])
    except BaseException:
        for registry, content in before:
            registry.restore(content)
        raise
    return notes


def _touched(staged: Iterable[Staged]) -> list[Registry[Any]]:
    return list(dict.fromkeys(registry for item in staged for registry, _ in item.claims))
