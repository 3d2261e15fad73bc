"""What a report says: the matrix, the verdict, the files, and the table that a package asks for it with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from plugrl.cli import plugins_list
from plugrl.errors import ConfigError, DataError
from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES
from plugrl.testing.kit import render
from plugrl.testing.kit.checks import check, checks_of
from plugrl.testing.kit.process import Job, _outcome
from plugrl.testing.kit.results import CheckResult, Report, Status, read_reports, span
from plugrl.testing.kit.settings import Settings, expand_levels, find_settings


def result(id: str, status: Status, capability: str | None = None, **changes: str) -> CheckResult:
    return CheckResult(id=id, level=id.partition(".")[0], status=status, capability=capability, **changes)


def report(*results: CheckResult, **changes: object) -> Report:
    values = {"plugin": "acme", "platform": "acme", "levels": ("L0", "L1"), "declared": ("platform.rng",),
              "versions": {"torch": "2.13.0"}, "date": "2026-11-30T12:00:00+00:00", **changes}  # fmt: skip
    return Report(results=results, **values)


RNG = result("L1.rng.a", "supported", "platform.rng")


def test_the_worst_check_decides_a_capability_and_what_is_not_declared_is_listed() -> None:
    found = report(RNG, result("L1.rng.b", "failed", "platform.rng"), result("L1.x", "xfail", "platform.copy"))
    matrix = found.matrix()
    assert (matrix["platform.rng"], matrix["platform.copy"]) == ("failed", "xfail")
    assert matrix["platform.ipc"] == "not_declared" and "numerics.fp32" not in matrix
    assert list(matrix) == [name for name in PLATFORM_CAPABILITIES if name in matrix]


@pytest.mark.parametrize(
    ("results", "demanded", "passed"),
    [
        ((RNG,), True, True),
        ((), True, False),
        ((result("L1.a", "skipped"), result("L1.b", "not_declared", "platform.ipc")), False, False),
        ((RNG, result("L1.b", "failed")), False, False),
        ((RNG, result("L1.b", "xfail")), True, True),
        ((RNG, result("L2.b", "blocked")), True, False),
        ((RNG, result("L2.b", "blocked")), False, True),
    ],
)
def test_nothing_executed_is_a_failure_and_so_is_a_blocked_level_that_was_asked_for(results, demanded, passed) -> None:
    assert report(*results, demanded=demanded).passed is passed


def test_the_summary_counts_capabilities() -> None:
    text = report(RNG, result("L1.x", "failed", "platform.copy")).summary()
    assert text == "L0-L1 supported 1, failed 1, not declared 13; run 2026-11-30 with torch 2.13.0"
    assert span(("L0", "L2", "L3", "engine")) == "L0, L2-L3, engine"


@pytest.mark.parametrize(
    ("declared", "probes", "passes", "status"),
    [
        (True, False, True, "supported"),
        (True, True, False, "failed"),
        (False, False, True, "not_declared"),
        (False, True, True, "works_undeclared"),
        (False, True, False, "not_declared"),
    ],
)
def test_what_is_declared_is_run_and_what_is_not_is_only_probed(declared, probes, passes, status) -> None:
    def body(kit: object) -> None:
        """It holds."""
        ran.append(kit)
        assert passes

    ran: list[object] = []
    fields = {"id": "L1.a", "level": "L1", "requirement": "", "fix": "", "devices": 1}
    item = SimpleNamespace(**fields, capability="platform.rng", body=body)
    kit = SimpleNamespace(declared=frozenset({"platform.rng"} if declared else ()))
    job = Job(level="L1", platform="acme", plugin="acme", probe_undeclared=probes)
    assert _outcome(item, kit, job, "").status == status
    assert len(ran) == (declared or probes)
    assert _outcome(item, kit, job, "no board").status == ("blocked" if declared or probes else "not_declared")


def test_json_is_read_as_it_was_written_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "capabilities.json"
    kept = report(RNG, result("L1.b", "xfail", note="driver (issue 7)"), devices="2 x acme")
    path.write_text(render.as_json([kept]))
    assert read_reports(path) == (kept,)
    for text in ("{", "[]", '{"reports": [{"format": 9}]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="capabilities.json is no record"):
            read_reports(path)


def test_junit_counts_and_keeps_even_what_xml_cannot_hold() -> None:
    failed = result("L1.b", "failed", detail="got \x1b[31m<1>\nmore", fix="mend it")
    root = ElementTree.fromstring(render.as_junit([report(RNG, failed, result("L1.c", "skipped", detail="no board"))]))
    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert "mend it" in (suite.find("testcase/failure").text or "")
    assert suite.find("testcase/failure").get("message") == "got [31m<1>"


def test_markdown_names_what_it_was_measured_with_and_every_capability() -> None:
    text = render.as_markdown(report(RNG, result("L1.b", "xfail", "platform.copy", note="see 7"), devices="2 x acme"))
    assert "torch 2.13.0; 2 x acme" in text and "| L1 | `platform.rng` | yes | the same seed" in text
    assert "| known failure |" in text and "`platform.ipc` | not declared |" in text and "`L1.b`: see 7" in text


def test_the_terminal_shows_reasons_once_and_the_verdict() -> None:
    rows = [result(f"L2.{name}", "blocked", detail="L1.devices.usable failed") for name in "abcdef"]
    lines = render.report_lines(report(RNG, *rows, demanded=True))
    assert "blocked: L2.a, L2.b, L2.c, L2.d and 2 more: L1.devices.usable failed" in lines
    assert lines[-1] == "acme does NOT conform to L0-L1: checks supported 1, blocked 6."
    assert any("proves nothing" in line for line in render.report_lines(report()))


def test_a_few_checks_do_not_earn_the_verdict_of_their_level() -> None:
    some = report(RNG, only=("L1.rng.generator",))
    lines = render.report_lines(some)
    assert lines == ["acme passes what was asked for of L0-L1: checks supported 1."]
    assert Report.from_dict(some.to_dict()) == some


def test_the_list_of_plugins_shows_the_last_run(bench_record, tmp_path: Path) -> None:
    assert plugins_list.conformance(bench_record) == []
    (tmp_path / "capabilities.json").write_text(render.as_json([report(RNG)]))
    assert plugins_list.conformance(bench_record) == [f"acme: {report(RNG).summary()}"]
    (tmp_path / "capabilities.json").write_text("{")
    assert "cannot be read (JSONDecodeError" in plugins_list.conformance(bench_record)[0]


@pytest.fixture
def bench_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    module = SimpleNamespace(__file__=str(tmp_path / "plugin.py"))
    monkeypatch.setitem(plugins_list.sys.modules, "acme_made.plugin", module)
    return SimpleNamespace(value="acme_made.plugin:plugin")


# --------------------------------------------------------------------- settings
def table(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "pyproject.toml").write_text("[tool.plugrl-conformance]\n" + text)
    folder = tmp_path / "tests" / "deep"
    folder.mkdir(parents=True, exist_ok=True)
    return find_settings(folder)


def test_the_table_is_found_above_the_tests_and_read(tmp_path: Path) -> None:
    found = table(tmp_path, 'plugin = "acme"\nlevels = ["L0-L2", "engine"]\nenv = {ACME_BOARDS = 2}\n'
                  'xfail = [{check = "dist.all_reduce.avg", reason = "sums", issue = "https://acme/7"}]\n')  # fmt: skip
    assert found == Settings(plugin="acme", levels=("L0", "L1", "L2", "engine"), env={"ACME_BOARDS": "2"},
                             xfail={"dist.all_reduce.avg": "sums (https://acme/7)"})  # fmt: skip
    (tmp_path / "tests" / "pyproject.toml").write_text("[tool.other]\n")
    assert find_settings(tmp_path / "tests") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('plugin = "acme"\nlevel = "L0"', ["no field level", "Did you mean levels"]),
        ('levels = ["L7"]', ['"L7" is no level', "L0-L3"]),
        ('xfail = [{check = "a", reason = "b"}]', ["xfail of a lacks issue"]),
        ('xfail = [{check = "a", reason = "b", isue = "c"}]', ["no field isue", "issue"]),
        ('xfail = ["a"]', ["'a' must be a table"]),
        ('env = ["A"]', ["env must be a table"]),
        ('plugin = "acme', ["cannot be read"]),
    ],
)
def test_a_mistake_in_the_table_is_one_readable_message(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        table(tmp_path, text)
    assert all(word in str(caught.value) for word in words), caught.value


def test_levels_are_expanded_in_their_order() -> None:
    assert expand_levels(["L3", "l0-l1,engine"]) == ("L0", "L1", "L3", "engine")
    assert expand_levels(["all"])[-1] == "rollout" and expand_levels([]) == ()


# --------------------------------------------------------------------- the checks themselves
def test_every_capability_is_checked_and_every_check_says_what_it_asks() -> None:
    pytest.importorskip("torch")
    found = [item for level in ("L0", "L1", "L2", "L3", "L4", "L5") for item in checks_of(level)]
    assert len({item.id for item in found}) == len(found)
    assert not [item.id for item in found if not item.requirement or item.requirement[-1] != "."]
    unchecked = set(PLATFORM_CAPABILITIES) - {item.capability for item in found}
    assert not unchecked, f"nothing checks {sorted(unchecked)}"


def test_a_check_of_no_level_or_no_capability_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a level"):
        check("L9.a")
    with pytest.raises(ValueError, match="no capability 'platform.magic'"):
        check("L1.a", capability="platform.magic")
