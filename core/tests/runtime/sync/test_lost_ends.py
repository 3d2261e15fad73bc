"""An end of a route that is lost before it connects, and what a transfer that failed leaves in a connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plugrl.runtime.losses import Launch, loss_of, use_directory
from plugrl.runtime.sync import WeightReceiver, WeightRoute, WeightSender
from plugrl.runtime.sync.frames import Closed, GaveUp
from plugrl.runtime.sync.meeting import PeerClient, PeerServer

ROLLOUT = Launch(group="rollout", generation=3)
ACTOR = Launch(group="actor", generation=0)
TIMEOUT_S = 30.0


class Names(dict[str, Any]):
    """What stands for the run's directory."""

    find = dict.get


@pytest.fixture
def names() -> Iterator[Names]:
    """The names of a run with an actor and a rollout, neither of them lost."""
    known = Names({"group/rollout": {"generation": 3, "size": 2}, "group/actor": {"generation": 0, "size": 1}})
    use_directory(known)  # type: ignore[arg-type]
    yield known
    use_directory(None)


@pytest.fixture
def route(tmp_path: Path) -> WeightRoute:
    return WeightRoute(
        name="r", directory=str(tmp_path), receivers=2, timeout_s=TIMEOUT_S, sender=(ACTOR, 0), receiver_launch=ROLLOUT
    )


@pytest.mark.parametrize("kind", ["handle", "bucket"])
def test_a_sender_waits_for_no_receiver_that_is_lost(names: Names, route: WeightRoute, kind: str) -> None:
    route = replace(route, kind=kind)
    sender, there = WeightSender(route), WeightReceiver(route, 0)
    with ThreadPoolExecutor() as pool:
        staying = pool.submit(there.apply, 1, lambda received, version: None)
        sending = pool.submit(sender.send, {"weight": torch.ones(2)}.items(), 1)
        time.sleep(0.1)
        assert not sending.done()
        names["losses"] = [["rollout", 2, 1, "an earlier one is gone."], ["rollout", 3, 1, "pid 7 is stopped."]]
        assert str(sending.exception(5)) == "Receiver 1 is lost. pid 7 is stopped."
        assert isinstance(staying.exception(5), GaveUp)
    for end in (sender, there):
        end.close()


def test_a_receiver_waits_for_no_sender_that_is_lost_or_was_closed(names: Names, route: WeightRoute) -> None:
    del names["group/actor"]
    receiver = WeightReceiver(replace(route, kind="handle"), 0)
    with pytest.raises(Closed, match="The sender is lost. Worker group 'actor' was closed."):
        receiver.apply(1, lambda received, version: None)
    receiver.close()


def test_a_launch_is_lost_when_its_name_stands_for_another_one(names: Names) -> None:
    assert loss_of(ROLLOUT, 1) == ""
    names["group/rollout"] = {"generation": 4, "size": 2}
    assert loss_of(ROLLOUT, 1) == "Worker group 'rollout' was closed."
    use_directory(None)
    assert loss_of(ROLLOUT, 1) == ""


def announced(server: PeerServer, client: PeerClient, before: threading.Timer | None = None) -> Any:
    """Announce version 3 to a client that waits for it, and return what it takes for the announcement."""
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.begin, 3)
        if before is not None:
            before.join()
        server.gather()
        server.post({"kind": "begin", "version": 3})
        return answer.result(5)


@pytest.mark.parametrize("when", ["before", "while"])
def test_what_an_earlier_transfer_left_announces_nothing(tmp_path: Path, when: str) -> None:
    """The receiver failed before it took part: the sender gave up before the next transfer, or while it begins."""
    server = PeerServer(str(tmp_path / "s"), [0], TIMEOUT_S)
    client = PeerClient(str(tmp_path / "s"), 0, TIMEOUT_S)
    assert announced(server, client)["version"] == 3
    server.post({"kind": "begin", "version": 2})
    late = threading.Timer(0.2, server.abort, ["the other end failed"])
    late.start()
    if when == "before":
        late.join()
    assert announced(server, client, late) == {"kind": "begin", "version": 3}
    client.drop()
    server.close()
