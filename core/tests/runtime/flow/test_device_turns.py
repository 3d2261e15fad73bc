"""Turns of workers on devices that they share: one at a time, state that comes and goes, and owners that die."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from plugrl.errors import PeerLostError, PlugRLError, RuntimeTimeout
from plugrl.runtime.flow.device_home import DeviceHome
from plugrl.runtime.flow.device_turns import DeviceTurns
from plugrl.runtime.flow.residency import DeviceMemoryError
from plugrl.runtime.transport import Endpoint, EndpointConfig, Pending

BUDGET = 100


class State:
    """Remembers what became of it."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    def onload(self) -> None:
        self.moves.append("on")

    def offload(self) -> None:
        self.moves.append("off")


Open = Callable[[str], Endpoint]


@pytest.fixture
def open_endpoint() -> Iterator[Open]:
    opened: list[Endpoint] = []
    with tempfile.TemporaryDirectory(prefix="plugrl-t-") as folder:

        def make(name: str) -> Endpoint:
            opened.append(Endpoint(EndpointConfig(name=name, run_id="r", folder=folder, secret=b"s" * 32)))
            return opened[-1]

        yield make
        for endpoint in opened:
            endpoint.close()


@pytest.fixture
def home(open_endpoint: Open) -> DeviceHome:
    return DeviceHome(open_endpoint("driver"), BUDGET)


def turns(open_endpoint: Open, home: DeviceHome, name: str, *devices: int) -> DeviceTurns:
    return DeviceTurns(open_endpoint(name), lambda: home._endpoint.address, [str(device) for device in devices])


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_state_stays_after_a_turn_and_leaves_when_another_needs_the_room(open_endpoint: Open, home: DeviceHome) -> None:
    rollout, actor, small = (turns(open_endpoint, home, name, 0) for name in ("rollout:0", "actor:0", "small:0"))
    weights, optimizer, little = State(), State(), State()
    for _ in range(2):
        with rollout.turn([weights], need_mib=60):
            pass
    assert weights.moves == ["on"], "nobody needed the room, so it stays where it is"
    with small.turn([little], need_mib=40), small.turn():
        assert weights.moves == ["on"], "both fit"
    with actor.turn([optimizer], need_mib=60):
        assert weights.moves == ["on", "off"] and optimizer.moves == ["on"] and little.moves == ["on"]
    with rollout.turn([weights], need_mib=60):
        assert weights.moves == ["on", "off", "on"]
        assert little.moves == ["on", "off"] or optimizer.moves == ["on", "off"]
    with pytest.raises(DeviceMemoryError, match="device 0 has 100 MiB, and actor:0 needs 101 MiB"):
        with actor.turn([optimizer], need_mib=101):
            pass
    assert home.locks.holder("0") is None or str(home.locks.holder("0")) == "rollout:0"


def test_turns_are_taken_one_at_a_time_in_the_order_of_asking(open_endpoint: Open, home: DeviceHome) -> None:
    first, third = (turns(open_endpoint, home, f"w:{device}", device) for device in (0, 1))
    second = turns(open_endpoint, home, "both", 0, 1)
    order: list[str] = []

    def take(who: DeviceTurns, name: str) -> None:
        with who.turn(timeout=30):
            order.append(name)

    with first.turn():
        both = threading.Thread(target=take, args=(second, "both"))
        both.start()
        until(lambda: home.locks.waiting("0"))
        last = threading.Thread(target=take, args=(third, "one"))
        last.start()
        until(lambda: len(home.locks.waiting("1")) == 2)
        with pytest.raises(RuntimeTimeout, match="w:0 holds device 0"):
            with turns(open_endpoint, home, "late", 0).turn(timeout=0.3):
                pass
        assert order == []
    both.join(20)
    last.join(20)
    assert order == ["both", "one"]


def test_a_consumer_waits_for_its_data_without_the_devices(open_endpoint: Open, home: DeviceHome) -> None:
    producer, consumer = turns(open_endpoint, home, "p", 0), turns(open_endpoint, home, "c", 0)
    data: Pending[int] = Pending("data")
    done = threading.Event()

    def consume() -> None:
        with consumer.turn(after=[data], timeout=30):
            done.set()

    thread = threading.Thread(target=consume)
    thread.start()
    with producer.turn(timeout=10):
        assert not home.locks.waiting("0"), "it asks for the devices before its data are there"
        data.resolve(1)
        until(lambda: home.locks.waiting("0"))
        assert not done.is_set()
    assert done.wait(20)
    thread.join(20)


def test_a_worker_that_dies_frees_its_devices_its_place_and_its_memory(open_endpoint: Open, home: DeviceHome) -> None:
    dying, waiting, heir = (turns(open_endpoint, home, name, 0) for name in ("dying", "waiting", "heir"))
    entered, failed = threading.Event(), threading.Event()

    def hold() -> None:
        with dying.turn([State()], need_mib=90):
            entered.set()
            failed.wait(20)

    def wait() -> None:
        try:
            with waiting.turn(timeout=30):
                pass
        except PeerLostError:
            failed.set()

    threads = [threading.Thread(target=hold), threading.Thread(target=wait)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    until(lambda: home.locks.waiting("0"))
    waiting._endpoint.close()
    dying._endpoint.close()
    with heir.turn([State()], need_mib=90, timeout=10):
        assert [str(owner) for owner in home._guests] == ["heir"], "the memory of the dead is still counted"
    failed.set()
    for thread in threads:
        thread.join(20)


def test_state_that_cannot_leave_is_an_error_of_whoever_needs_the_room(open_endpoint: Open, home: DeviceHome) -> None:
    class Stuck(State):
        def offload(self) -> None:
            raise RuntimeError("busy")

    one, other = turns(open_endpoint, home, "one", 0), turns(open_endpoint, home, "other", 0)
    with one.turn([Stuck()], need_mib=90):
        pass
    for _ in range(2):  # It is still there, and is asked again.
        with pytest.raises(PlugRLError, match="one could not be off-loaded: busy"):
            with other.turn([State()], need_mib=90, timeout=10):
                pass
    with one.turn(timeout=10):
        pass
