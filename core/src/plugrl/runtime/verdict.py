"""What a wait ends with when it does not end well: the first cause among failures, deaths and deadlines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from plugrl.errors import CallCancelled, PeerLostError, WorkerTimeout
from plugrl.runtime.calls import Call
from plugrl.runtime.liveness import Finding, error_of

_SETTLE_S = 0.3
"""After a failure: how long to look for the death or the earlier failure that caused it."""
_SETTLE_DEATH_S = 3.0
"""As above, when the failure says that another process is gone; also how long its peers may take to notice."""


def step(calls: Sequence[Call], *, any_rank: bool = False) -> bool:
    """Look once at all calls: True when all have ended, False when some still run. Raises the first cause.

    With ``any_rank`` the failure of a rank is one of all calls, also where its group returns errors.
    """
    for call in calls:
        call.take(0)
    _raise_cancelled(calls)
    _raise_failure(calls, any_rank)
    if not any(call.pending for call in calls):
        return True
    _raise_lost(calls)
    return False


def _raise_lost(calls: Sequence[Call]) -> None:
    """Look for workers that are gone or frozen, and do what their group wants done about it."""
    session = calls[0].group.session
    waited = {call.group for call in calls}
    while True:
        watched = [group for group in session.open_groups() if group.on_error == "raise" or group in waited]
        finding = session.watch.find(watched)
        if finding is None:
            break
        if not finding.group.restart_rank(finding.info.rank):
            _raise_or_note(finding, calls)
    for call in calls:
        if call.group.on_error == "return":
            _free_peers(call)


def _raise_or_note(finding: Finding, calls: Sequence[Call]) -> None:
    error = error_of(finding)
    group = finding.group
    group.mark_lost(finding.info.rank)
    for call in calls:
        # Calls of other groups may still end well; once the dead group is closed they can be waited for again.
        if call.group is group:
            if group.on_error == "return":
                call.give_up(finding.info.rank, error)
            else:
                call.error = error
    if group.on_error != "return":
        raise error


def _free_peers(call: Call) -> None:
    """Stop waiting for ranks that a collective with a lost rank holds: gloo lets go of them at its own deadline."""
    lost = call.group.lost_ranks
    if not lost or not call.group.has_process_group:
        return
    for rank in call.pending_ranks:
        first = min(lost, key=lambda other: lost[other])
        if rank not in lost and time.monotonic() - lost[first] > _SETTLE_DEATH_S:
            where = call.group.describe_rank(rank)
            peer = call.group.describe_rank(first)
            text = f"{where} waits in {call.method}() for {peer}, which is lost; close the group and launch it again."
            call.give_up(rank, PeerLostError(text, group=peer.group, rank=first, node=peer.node_ip))


def _raise_cancelled(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.error is None and call.cancelled_at is not None:
            grace = call.group.session.config.liveness_timeout_s
            if call.pending and time.monotonic() - call.cancelled_at < grace:
                continue
            call.error = _cancelled(call, grace)
            raise call.error


def _cancelled(call: Call, grace: float) -> CallCancelled:
    text = f"The call of {call.method}() of worker group {call.group.name!r} was cancelled."
    if call.pending:
        call.group.mark_broken()
        ranks = ", ".join(map(str, call.pending_ranks))
        text += f" Rank {ranks} did not stop within {grace:g} s, as a call into C does not; close the group."
    return CallCancelled(text)


def _raise_failure(calls: Sequence[Call], any_rank: bool) -> None:
    if not _failed(calls, any_rank):
        return
    _settle(calls, any_rank)
    raising = _failed(calls, any_rank)
    for call in raising:
        error = call.error or next(iter(call.errors.values()), None)
        if error is not None:
            call.error = error
            call.group.mark_broken()
            raise error
    failures = [(item.is_consequence, item.at, call) for call in raising for item in call.failures.values()]
    _, _, first = min(failures, key=lambda item: item[:2])
    failure = min(first.failures.values(), key=lambda item: (item.is_consequence, item.at))
    for call in calls:
        if call.pending and not any_rank:
            call.group.mark_broken()
    first.error = failure.error()
    raise first.error


def _failed(calls: Sequence[Call], any_rank: bool) -> list[Call]:
    """Return the calls that a wait raises for; one that is cancelled has its own error in the end."""
    return [
        call
        for call in calls
        if call.error is not None
        or (call.has_failed and (any_rank or call.group.on_error != "return") and call.cancelled_at is None)
    ]


def _settle(calls: Sequence[Call], any_rank: bool) -> None:
    """Give the cause of a failure time to show: a peer whose death broke a collective, a rank that failed before."""
    began = time.monotonic()
    while True:
        raising = _failed(calls, any_rank)
        if any(call.error or call.errors for call in raising):
            return
        failures = [failure for call in raising for failure in call.failures.values()]
        follows = all(failure.is_consequence or failure.cause_type.startswith("Actor") for failure in failures)
        if time.monotonic() - began >= (_SETTLE_DEATH_S if follows else _SETTLE_S):
            return
        _raise_lost(calls)
        waiting = [call for call in calls if call.pending]
        if not waiting and not follows:
            return
        for call in waiting:
            call.take(0)
        time.sleep(0.02)


def timeout_of(calls: Sequence[Call], limit: float) -> WorkerTimeout:
    """Return the error of a wait that is over: which ranks did not answer, and where the first of them stands."""
    waiting = [call for call in calls if call.pending]
    parts = []
    for call in waiting:
        ranks = ", ".join(map(str, call.pending_ranks))
        parts.append(f"worker group {call.group.name!r} rank {ranks} in {call.method}()")
    text = f"No answer after {limit:g} s from {'; '.join(parts)}."
    if limit <= 0:
        return WorkerTimeout(text, group=waiting[0].group.name, rank=waiting[0].pending_ranks[0])
    for call in waiting:
        call.group.mark_broken()
        text += "".join(f"\n{line}" for line in _standing(call))
    first = waiting[0]
    rank = first.pending_ranks[0]
    info = first.group.known_processes().get(rank)
    unplaced = [rank for call in waiting for rank in call.group.unplaced_ranks()]
    if unplaced and first.group.session.platform.ray_resource_name():
        text += f"\nRay has not started all of their processes.\n{first.group.session.shortage(len(unplaced))}"
    stacks = first.group.session.watch.words_of(info, stacks=True).stacks if info else ""
    if stacks:
        text += f"\nWhere rank {rank} of {first.group.name!r} stands:\n{stacks}"
    return WorkerTimeout(
        text,
        group=first.group.name,
        rank=rank,
        node=info.node_ip if info else "",
        pid=info.pid if info else 0,
        remote_traceback=stacks,
    )


def _standing(call: Call) -> list[str]:
    """Say what each rank that did not answer does, in words of its own."""
    lines = []
    for rank, info in sorted(call.group.known_processes().items()):
        seen = call.group.session.watch.look(info)
        if rank in call.pending_ranks and seen.phase:
            state = "" if seen.state == "alive" else f", {seen.state}"
            lines.append(f"{info}: {seen.phase} for {seen.phase_s:.1f} s{state}")
    return lines
