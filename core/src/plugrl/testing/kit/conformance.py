"""From the name of a plugin or platform to a report: which levels apply, running them, and what they ran with."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform as host
from dataclasses import dataclass, field
from pathlib import Path

import plugrl
from plugrl.errors import UserError, nearest, one_of
from plugrl.platforms.capabilities import LEVELS
from plugrl.plugins.ledger import Ledger, PluginRecord
from plugrl.plugins.loader import load_plugins
from plugrl.plugins.manifest import Plugin
from plugrl.testing.fork_server import ForkServer
from plugrl.testing.kit.process import Job
from plugrl.testing.kit.results import CheckResult, Report
from plugrl.testing.kit.runner import Progress, blocked_level, run_level
from plugrl.testing.kit.settings import Settings, read_settings

KITS = {"engines": "engine", "models": "model", "envs": "env", "rollouts": "rollout"}
"""Field of a manifest -> the kit for what it holds."""


class UnknownExpectation(UserError):
    """An expected failure names neither a check nor a capability that was run."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is checked: a plugin with one of its platforms, or a platform that is built in, or a plugin without one."""

    plugin: str = ""
    platform: str = ""
    distribution: str = ""
    declared: tuple[str, ...] = ()
    kits: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that apply to it, all of them."""
        device = tuple(LEVELS)[1:] if self.platform else ()
        return ("L0", *device, *self.kits)


def targets_of(name: str) -> tuple[Target, ...]:
    """Return what the name of a plugin, a distribution or a platform stands for, one for each platform of a plugin.

    Raises PluginError-like UserError for an unknown name.
    """
    from plugrl.platforms.registry import PLATFORMS, declared_capabilities

    ledger = load_plugins(fatal=False, quiet=True)
    record = ledger.find(name)
    if record is None and name in PLATFORMS:
        key = str(PLATFORMS.entry(name).key)
        owner = ledger.find(PLATFORMS.entry(name).origin.plugin or "")
        if owner is None:
            return (Target(platform=key, distribution="plugrl", declared=declared_capabilities(key)),)
        return (_with_platform(owner, key),)
    if record is None:
        raise UserError(_not_found(ledger, name, PLATFORMS.keys()))
    entries = record.manifest.platforms if record.manifest is not None and record.state == "active" else ()
    return tuple(_with_platform(record, entry.name) for entry in entries) or (_with_platform(record, ""),)


def _with_platform(record: PluginRecord, platform: str) -> Target:
    from plugrl.platforms.registry import declared_capabilities

    manifest = record.manifest if record.state == "active" else None
    return Target(
        plugin=record.name,
        platform=platform,
        distribution=record.distribution or "",
        declared=declared_capabilities(platform) if platform else (),
        kits=() if manifest is None else _kits_of(manifest),
        settings=_settings_of(record),
    )


def _kits_of(manifest: Plugin) -> tuple[str, ...]:
    """Return the kits for what a manifest holds; models that act have one more."""
    found = [kit for name, kit in KITS.items() if getattr(manifest, name)]
    acting = any(entry.category == "embodied" for entry in manifest.models)
    return tuple(part for kit in found for part in ((kit, "policy") if kit == "model" and acting else (kit,)))


def _settings_of(record: PluginRecord) -> Settings:
    """Return the table of the source folder of an editable install, which a wheel does not ship."""
    path = Path(record.path) / "pyproject.toml" if record.path else None
    return (read_settings(path) if path is not None and path.is_file() else None) or Settings()


def _not_found(ledger: Ledger, name: str, platforms: tuple[object, ...]) -> str:
    known = {record.name for record in ledger.records} | {str(key) for key in platforms}
    like = nearest(name, known)
    hint = f" Did you mean {like}?" if like else ""
    return f'No plugin and no platform "{name}" is installed.{hint} Installed: {one_of(known)}.'


def run_conformance(
    target: Target,
    levels: tuple[str, ...] = (),
    *,
    only: tuple[str, ...] = (),
    probe_undeclared: bool = False,
    settings: Settings | None = None,
    progress: Progress | None = None,
    env: dict[str, str] | None = None,
    server: ForkServer | None = None,
) -> Report:
    """Run the levels (default: all that apply) on a target. ``env`` is laid over the environment of each level
    and over what the settings say. ``server`` forks the processes of the levels after L0, for tests of the kit.

    Levels that do not apply are left out. ``only`` are ids of checks. A level that is blocked, or whose gate fails,
    blocks those after it. Raises UnknownExpectation when an expected failure names nothing that exists, UserError when
    no level applies or ``only`` names a check that none of them has.
    """
    settings = settings or target.settings
    chosen = tuple(level for level in target.levels if level in (levels or target.levels))
    if not chosen:
        raise UserError(f"None of {', '.join(levels)} applies to {target.plugin or target.platform}: it has "
                        f"{', '.join(target.levels)}.")  # fmt: skip
    results: list[CheckResult] = []
    facts: dict[str, object] = {}
    blocks = ""
    for level in chosen:
        if blocks:
            results.append(blocked_level(level, blocks))
            continue
        job = Job(
            level=level,
            platform=target.platform,
            plugin=target.plugin,
            probe_undeclared=probe_undeclared,
            only=only,
            modules=settings.modules,
            xfail=settings.xfail,
            options=settings.options,
        )
        run = run_level(job, progress=progress, env={**settings.env, **(env or {})}, server=server)
        results += run.results
        facts.update(run.facts)
        blocks = run.blocks
    idle = [name for name in only if name not in {result.id for result in results}]
    if idle and not blocks:
        name = target.platform or target.plugin
        raise UserError(f"--only: there is no check {one_of(idle)} in {', '.join(chosen)} of {name}.")
    offered = facts.get("declared")
    report = Report(
        plugin=target.plugin,
        platform=target.platform,
        declared=tuple(str(name) for name in offered) if isinstance(offered, list) else target.declared,
        levels=chosen,
        demanded=bool(levels),
        only=only,
        results=tuple(results),
        versions=_versions(target, str(facts.get("sdk", ""))),
        devices=str(facts.get("devices", "")),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    _check_expectations(settings, report, complete=set(chosen) >= set(target.levels) and not only and not blocks)
    return report


def _check_expectations(settings: Settings, report: Report, *, complete: bool) -> None:
    """An expectation that no run can meet is a slip; which those are is known only when everything ran."""
    ran = {result.id for result in report.results} | {result.capability for result in report.results}
    idle = [name for name in settings.xfail if name not in ran]
    if idle and complete:
        raise UnknownExpectation(f"xfail names {one_of(idle)}, but no check and no capability of that name was run.")


def _versions(target: Target, sdk: str) -> dict[str, str]:
    found = {"python": host.python_version(), "plugrl": plugrl.__version__}
    for name in ("torch", target.distribution):
        if name and name not in found:
            version = version_of(name)
            if version:
                found[name] = version
    return {**found, "sdk": sdk} if sdk else found


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution without its local part, empty when it is not installed."""
    try:
        return importlib.metadata.version(distribution).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


