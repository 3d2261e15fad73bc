"""Running levels, each in a process of its own that is watched: a crash or a hang is the result of one check.

After either the level goes on with the next check in a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from plugrl.testing.fork_server import ForkedProcess, ForkServer
from plugrl.testing.kit.process import Job, expected_failure
from plugrl.testing.kit.results import CheckResult

START_S = 300.0
"""Seconds for the import of torch, and again for the platform: an extension may be compiled when it is first used."""

GRACE_S = 30.0
"""Seconds for what stands between two checks, and for the end of the process."""

RESTARTS = 5
"""How often a level begins anew after a crash or a hang; after that the rest of it is blocked."""

_Process = subprocess.Popen[bytes] | ForkedProcess

Progress = Callable[[str, int, int, str], None]
"""Called with level, number of checks done, number of all, and the id of the one that begins."""


@dataclass
class LevelRun:
    """What became of a level: results in order, what it ran on, and why later levels make no sense (if so)."""

    results: list[CheckResult] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    blocks: str = ""


def run_level(
    job: Job,
    *,
    progress: Progress | None = None,
    env: dict[str, str] | None = None,
    server: ForkServer | None = None,
) -> LevelRun:
    """Run one level. ``env`` is laid over the environment of its process.

    ``server`` forks the process, for a level that imports what it has imported anyway: L0 asks for it before torch.
    """
    run = LevelRun()
    for attempt in range(RESTARTS + 1):
        done = tuple(result.id for result in run.results)
        watch = _Watch(replace(job, done=done), run, progress, server if job.level != "L0" else None)
        ended = watch.follow(env or {})
        if not ended:
            break
        if not watch.ready:
            _add(run, job, _synthetic(job, f"before its first check the process of this level {ended}"), gate=True)
            _block_rest(run, watch.plan, run.blocks)
            break
        # Between two checks nobody is running: then the next one could not begin, or it was the end of the process.
        current = watch.current or watch.next_id()
        if current is None:
            run.results.append(_synthetic(job, f"after the last check the process {ended}"))
            break
        plan = watch.plan[current]
        told = f"in this check the process {ended}"
        _add(run, job, _from_plan(plan, "failed", told), gate=plan["gate"])
        if run.blocks or attempt == RESTARTS:
            reason = run.blocks or f"the level crashed or hung {RESTARTS + 1} times"
            _block_rest(run, watch.plan, reason)
            break
    return run


class _Watch:
    """One process of a level, from its start to its end."""

    def __init__(self, job: Job, run: LevelRun, progress: Progress | None, server: ForkServer | None) -> None:
        self.plan: dict[str, dict[str, Any]] = {}
        self.ready = False
        self.current: str | None = None
        self._job = job
        self._run = run
        self._progress = progress
        self._server = server
        self._deadline = time.monotonic() + START_S

    def follow(self, env: dict[str, str]) -> str:
        """Take in everything the process says; return how it ended, empty when it ended as it should."""
        with tempfile.TemporaryFile() as log, self._process(env, log) as (process, stream):
            complete = self._read(stream)
            if complete is None:
                overdue = self.plan[self.current]["deadline_s"] if self.current else START_S
                return f"gave no answer within {overdue:g} s and was ended. {_last_words(log)}"
            try:
                code = process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                return f"did not end within {GRACE_S:g} s after its last word and was ended. {_last_words(log)}"
            if code == 0:
                return ""
            return f"{_ending(code)}. {_last_words(log)}"

    def next_id(self) -> str | None:
        """Return the first check of the plan without a result."""
        done = {result.id for result in self._run.results}
        return next((name for name in self.plan if name not in done), None)

    @contextlib.contextmanager
    def _process(self, env: dict[str, str], log: IO[bytes]) -> Iterator[tuple[_Process, int]]:
        reading, writing = os.pipe()
        variables = {key: value for key, value in os.environ.items() if key not in ("PLUGRL_PLUGINS", "PLUGRL_STRICT")}
        chosen = {"VERL_PLATFORM": self._job.platform} if self._job.platform and self._job.level != "L0" else {}
        try:
            process = self._launch(writing, log, {**variables, **chosen, **env})
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(self._job)).encode() + b"\n")
                process.stdin.flush()
            yield process, reading
        finally:
            # The whole group: a check may have started processes, and none of them may outlive its level.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            os.close(reading)

    def _launch(self, descriptor: int, log: IO[bytes], env: dict[str, str]) -> _Process:
        arguments = ["-m", "plugrl.testing.kit.process", str(descriptor)]
        common: dict[str, Any] = {"pass_fds": (descriptor,), "start_new_session": True, "env": env}
        if self._server is not None:
            return self._server.start(*arguments, stdin=subprocess.PIPE, stdout=log, stderr=log, **common)
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, **common)

    def _read(self, stream: int) -> bool | None:
        """Read events until the other end closes (True) or a deadline passes (None)."""
        pending = b""
        while True:
            left = self._deadline - time.monotonic()
            ready, _, _ = select.select([stream], [], [], max(0.0, left))
            if not ready:
                return None
            chunk = os.read(stream, 65536)
            if not chunk:
                return True
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        self._deadline = time.monotonic() + (START_S if kind == "plan" else GRACE_S)
        if kind == "plan":
            self.plan = {row["id"]: row for row in event["checks"]}
        elif kind == "facts":
            self.ready = True
            self._run.facts.update(event)
        elif kind == "start":
            self.current = event["id"]
            self._deadline = time.monotonic() + event["deadline_s"]
            if self._progress is not None:
                self._progress(self._job.level, len(self._run.results), len(self.plan), event["id"])
        elif kind == "end":
            result = CheckResult(**event["result"])
            self.current = None
            _add(self._run, self._job, result, gate=self.plan[result.id]["gate"])


def _add(run: LevelRun, job: Job, result: CheckResult, *, gate: bool) -> None:
    result = expected_failure(result, job.xfail)
    run.results.append(result)
    if gate and result.status == "failed" and not run.blocks:
        run.blocks = f"{result.id} failed"
    if result.status == "blocked" and not run.blocks:
        run.blocks = result.detail


def _block_rest(run: LevelRun, plan: dict[str, dict[str, Any]], reason: str) -> None:
    done = {result.id for result in run.results}
    run.results += [_from_plan(row, "blocked", reason) for name, row in plan.items() if name not in done]


def _from_plan(row: dict[str, Any], status: Any, detail: str) -> CheckResult:
    names = ("id", "level", "capability", "requirement")
    fix = row["fix"] if status == "failed" else ""
    return CheckResult(**{name: row[name] for name in names}, status=status, detail=detail, fix=fix)


def _synthetic(job: Job, detail: str) -> CheckResult:
    requirement = "The process of the level runs from its start to its end."
    return CheckResult(
        id=f"{job.level}.process", level=job.level, status="failed", requirement=requirement, detail=detail
    )


def blocked_level(level: str, reason: str) -> CheckResult:
    """Return the one result that stands for a level that was not begun."""
    return CheckResult(id=f"{level}.process", level=level, status="blocked", detail=reason)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    said: Sequence[str] = log.read().decode(errors="replace").strip().splitlines()[-8:]
    return "Its output ends with: " + " / ".join(said) if said else "It printed nothing."
