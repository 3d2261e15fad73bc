"""The process of one level: run its checks one after the other and tell the runner of each, before and after.

What goes through the pipe is one JSON object a line: ``plan`` (the checks to come), ``facts`` (what it runs on), then
``start`` and ``end`` of each check, so that a crash or a hang names the check that it happened in.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from plugrl.errors import PlugRLError, one_line
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, KitCheck, checks_of
from plugrl.testing.kit.context import Context
from plugrl.testing.kit.results import CheckResult

_LINES = 12
"""Lines of a traceback that a result keeps: its end tells most."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the process is to do, as the runner sends it.

    ``only`` are the ids to run (empty: all), ``done`` those that an earlier process of this level has dealt with.
    ``modules`` hold further checks. ``xfail`` maps ids of checks and capabilities to why they are expected to fail.
    """

    level: str
    platform: str
    plugin: str
    subject: str = ""
    probe_undeclared: bool = False
    only: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    xfail: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that ``json.dumps(asdict(job))`` wrote."""
        values = json.loads(text)
        return cls(**{**values, **{name: tuple(values[name]) for name in ("only", "done", "modules")}})


def run_level(job: Job, stream: TextIO) -> None:
    """Run the checks of ``job`` and write what becomes of them to ``stream``."""

    def send(event: str, **values: Any) -> None:
        stream.write(json.dumps({"event": event, **values}, default=str) + "\n")
        stream.flush()

    checks = [item for item in checks_of(job.level, job.modules) if not job.only or item.id in job.only]
    send("plan", checks=[_describe(item) for item in checks])
    with tempfile.TemporaryDirectory(prefix="plugrl-kit-") as folder:
        kit, reason = _prepare(job, Path(folder))
        send("facts", **_facts(kit) if not reason else {})
        for item in checks:
            if item.id in job.done:
                continue
            if not reason:
                send("start", id=item.id, deadline_s=item.deadline_s)
            result = _outcome(item, kit, job, reason)
            send("end", result=asdict(result))
            if item.gate and result.status == "failed":
                reason = f"{item.id} failed"


def _prepare(job: Job, folder: Path) -> tuple[Context, str]:
    """Return the context, and why nothing can be run in it; the platform is only asked, not set up, at L0."""
    kit = Context(
        level=job.level,
        platform_name=job.platform,
        plugin=job.plugin,
        subject=job.subject,
        declared=frozenset(),
        folder=folder,
        options=job.options,
    )
    if job.level == "L0":
        return kit, ""
    from plugrl.plugins import load_plugins

    load_plugins(quiet=True)
    if not job.platform:
        return kit, ""
    from plugrl.platforms.probing import probe
    from plugrl.platforms.registry import declared_capabilities

    record = probe(job.platform)
    kit.declared = frozenset(declared_capabilities(job.platform))
    if not record.available:
        return kit, f"{job.platform} is not available here: {record.reason}"
    try:
        kit.declared = frozenset(declared_capabilities(job.platform, kit.platform))
    except PlugRLError as error:
        return kit, str(error)
    return kit, ""


def _facts(kit: Context) -> dict[str, Any]:
    """What the level runs on. Asking may fail like everything else of a vendor's; then the checks will say so."""
    if kit.level == "L0" or not kit.platform_name:
        return {}
    try:
        name, count = kit.platform.device_name, kit.platform.device_count()
        return {"sdk": kit.platform.sdk_version(), "devices": f"{count} x {name}", "declared": sorted(kit.declared)}
    except Exception as error:
        return {"sdk": "", "devices": f"unknown ({one_line(error)})", "declared": sorted(kit.declared)}


def _outcome(item: KitCheck, kit: Context, job: Job, blocked: str) -> CheckResult:
    base = CheckResult(
        id=item.id,
        level=item.level,
        status="supported",
        capability=item.capability,
        requirement=item.requirement,
    )
    declared = item.capability is None or item.capability in kit.declared
    if not declared and not job.probe_undeclared:
        return replace(base, status="not_declared")
    if blocked:
        return replace(base, status="blocked", detail=blocked)
    result = _run(item, kit, base)
    if not declared:
        status: Any = {"supported": "works_undeclared", "failed": "not_declared"}.get(result.status, result.status)
        return replace(result, status=status)
    return expected_failure(result, job.xfail)


def expected_failure(result: CheckResult, xfail: dict[str, str]) -> CheckResult:
    """Return the result in the light of the expected failures, by id of the check or of its capability."""
    reason = xfail.get(result.id) or xfail.get(result.capability or "")
    if not reason:
        return result
    if result.status == "failed":
        return replace(result, status="xfail", note=reason)
    if result.status == "supported":
        return replace(result, note=f"listed as an expected failure ({reason}), and it passes: take it off the list")
    return result


def _run(item: KitCheck, kit: Context, base: CheckResult) -> CheckResult:
    """Run one body. The boundary to a vendor's code: whatever it raises is the result of this check."""
    started = time.monotonic()
    status: Any = "supported"
    detail, fix = "", ""
    try:
        if item.devices > 1:
            kit.need_devices(item.devices)
        detail = item.body(kit) or ""
    except CheckSkipped as error:
        status, detail = "skipped", str(error)
    except CheckFailed as error:
        status, detail, fix = "failed", str(error), item.fix
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        tail = "".join(traceback.format_exception(error)).strip().splitlines()[-_LINES:]
        status, detail, fix = "failed", "\n".join([one_line(error), *tail[:-1]]), item.fix
    return replace(base, status=status, detail=detail, fix=fix, seconds=round(time.monotonic() - started, 3))


def _describe(item: KitCheck) -> dict[str, Any]:
    names = ("id", "level", "capability", "requirement", "gate", "deadline_s", "fix")
    return {name: getattr(item, name) for name in names}


def main() -> int:
    """Run the job in the first line of standard input; the results go to the descriptor in ``sys.argv[1]``.

    Standard input stays open as long as the runner lives: its end takes this process and its children with it.
    """
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            return 1
        text += chunk
    job = Job.from_json(text.decode())
    threading.Thread(target=_end_with_runner, name="plugrl-kit-watch", daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as stream:
        run_level(job, stream)
    return 0


def _end_with_runner() -> None:
    # Not sys.stdin: a thread that waits in its buffer would hold a lock which the interpreter needs to exit.
    while os.read(0, 1):
        pass
    if os.getpid() != os.getpgrp():
        os._exit(1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
