"""The conformance kit as tests of pytest, one for each check: what a vendor's test file imports.

With the table ``[tool.plugrl-conformance]`` in the package's ``pyproject.toml`` (see
:mod:`plugrl.testing.kit.settings`) the whole file is::

    from plugrl.testing.platform import *  # noqa: F403

Without it, or for some levels only::

    from plugrl.testing.platform import platform_tests

    test_conformance = platform_tests("acme", levels=("L0", "L1"))

A level runs once and as a whole, in a process of its own, when its first test is asked for. What the platform does not
declare is skipped, an expected failure is an xfail.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plugrl.errors import ConfigError
from plugrl.testing.kit.checks import checks_of
from plugrl.testing.kit.conformance import Target, run_conformance, targets_of
from plugrl.testing.kit.results import CheckResult, Report
from plugrl.testing.kit.settings import TABLE, Settings, expand_levels, find_settings

__all__ = ["pytest_generate_tests", "test_conformance"]

_ARGUMENT = "conformance_case"


@dataclass(frozen=True)
class Case:
    """One test: a check of a level on a target; the one without a check asks whether any was executed at all."""

    target: Target
    settings: Settings
    levels: tuple[str, ...]
    level: str = ""
    check: str = ""


_reports: dict[tuple[str, str, str], Report] = {}


def platform_tests(name: str, levels: Sequence[str] = (), settings: Settings | None = None) -> Callable[[Case], None]:
    """Return a test function with one case for each check of the levels (default: all that apply) of a plugin.

    ``settings`` replaces what the plugin's own ``pyproject.toml`` says. Raises UserError for a name nobody has.
    """
    cases = _cases(name, expand_levels(levels), settings)

    @pytest.mark.parametrize(_ARGUMENT, [pytest.param(case, id=_title(case)) for case in cases])
    def test_conformance(conformance_case: Case) -> None:
        run_case(conformance_case)

    return test_conformance


def pytest_generate_tests(metafunc: Any) -> None:
    """Give :func:`test_conformance` its cases, from the table of the ``pyproject.toml`` above the test file."""
    if metafunc.function is not test_conformance:
        return
    folder = Path(metafunc.module.__file__).parent
    settings = find_settings(folder)
    if not settings.plugin:
        raise ConfigError(f"{metafunc.module.__file__} takes the conformance kit, but no pyproject.toml above it says "
                          f'which plugin to check: add [tool.{TABLE}] with plugin = "NAME".')  # fmt: skip
    cases = _cases(settings.plugin, settings.levels, settings)
    metafunc.parametrize(_ARGUMENT, [pytest.param(case, id=_title(case)) for case in cases])


def test_conformance(conformance_case: Case) -> None:
    """A check of the conformance kit passes, or the platform does not declare what it asks for."""
    run_case(conformance_case)


def run_case(case: Case) -> None:
    """Run the level of a case unless that was done, and let pytest know what became of its check."""
    if not case.check:
        _check_executed(case)
        return
    report = _report(case, case.level)
    result = next((item for item in report.results if item.id == case.check), None)
    if result is None:
        result = next((item for item in report.results if item.id == f"{case.level}.process"), None)
    assert result is not None, f"the level {case.level} has no result for {case.check}"
    _tell(result)


def _check_executed(case: Case) -> None:
    executed = sum(_report(case, level).executed for level in case.levels)
    if not executed:
        pytest.fail(f"no check of {', '.join(case.levels)} was executed, which proves nothing", pytrace=False)


def _tell(result: CheckResult) -> None:
    text = "\n".join(part for part in (result.requirement, result.detail, result.fix) if part)
    if result.status == "failed":
        pytest.fail(text, pytrace=False)
    if result.status == "xfail":
        pytest.xfail(result.note)
    if result.note:
        warnings.warn(f"{result.id}: {result.note}", stacklevel=1)
    if result.status in ("blocked", "not_declared", "skipped"):
        pytest.skip(f"{result.status.replace('_', ' ')} {result.capability or ''} {result.detail}".strip())


def _report(case: Case, level: str) -> Report:
    key = (case.target.plugin, case.target.platform, level)
    if key not in _reports:
        _reports[key] = run_conformance(case.target, (level,), settings=case.settings)
    return _reports[key]


def _cases(name: str, levels: tuple[str, ...], settings: Settings | None) -> list[Case]:
    cases = []
    for target in targets_of(name):
        chosen = tuple(level for level in target.levels if level in (levels or target.levels))
        base = Case(target=target, settings=settings or target.settings, levels=chosen)
        found = [(level, item.id) for level in chosen for item in checks_of(level, base.settings.modules)]
        cases += [Case(base.target, base.settings, chosen, level, check) for level, check in found]
        cases.append(base)
    return cases


def _title(case: Case) -> str:
    return f"{case.target.platform or case.target.plugin}-{case.check or 'something was executed'}"
