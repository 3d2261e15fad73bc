"""Peers that are killed or stopped: an error that says so within its bound, and nothing lost that had been handed over.

The other processes import no torch, so they start at once; what they send is large enough for shared memory.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from plugrl.errors import PeerLostError, RuntimeTimeout
from plugrl.runtime.channel.channel import Channel, create_on
from plugrl.runtime.channel.record import ChannelOptions
from plugrl.runtime.channel.server import ChannelServer
from plugrl.runtime.transport.address import Address

PEER = """
import json, sys, time
from plugrl.runtime.channel.channel import Channel
from plugrl.runtime.transport import Endpoint, EndpointConfig
settings, role, address = json.loads(sys.argv[1])
settings["secret"] = settings["secret"].encode()
here = Endpoint(EndpointConfig(**settings))
print(here.address, flush=True)
if role == "send":
    here.send(address, b"s" * 300_000, "first")
    while True:
        here.send(address, b"b" * 50_000_000, "bulk", transport="net", timeout=None)
if role == "put":
    channel = Channel(here, address, "c")
    for number in range(5):
        channel.put((number, bytes([number]) * 300_000))
    print("put", flush=True)
    channel.put((5, b"waits for room"), timeout=None)
if role == "get":
    pending = Channel(here, address, "c").get(async_op=True)
    while not pending.done():
        time.sleep(0.01)
    print("got", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(folder):
    """Start a peer with a role towards an address; all are killed at the end, and their sockets removed."""
    children = []

    def run(role, address=""):
        settings = {"name": role, "run_id": "r", "folder": folder, "secret": "0123456789abcdef" * 2}
        command = [sys.executable, "-c", PEER, json.dumps([settings, role, address])]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        child.address = child.stdout.readline().strip()
        return child

    yield run
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()
        os.unlink(Address(**json.loads(child.address)).path)


def test_a_killed_sender_ends_the_wait_at_once_and_half_a_message_is_none(open_endpoint, start):
    a = open_endpoint()
    child = start("send", a.address)
    assert a.recv(child.address, "bulk", timeout=30) == b"b" * 50_000_000
    waiting = a.irecv(child.address, "never")
    child.kill()
    begun = time.monotonic()
    with pytest.raises(PeerLostError, match="send .*is lost"):
        waiting.wait(10)
    assert time.monotonic() - begun < 5
    whole = 0
    with pytest.raises(PeerLostError):
        while True:
            assert a.recv(child.address, "bulk", timeout=10) == b"b" * 50_000_000
            whole += 1
    assert whole < 20
    assert a.recv(child.address, "first", timeout=10) == b"s" * 300_000, "what had been handed over can be taken"
    with pytest.raises(PeerLostError):
        a.send(child.address, 1)


def test_a_stopped_peer_is_a_timeout_that_says_what_was_waited_for(open_endpoint, start):
    a = open_endpoint("actor:0")
    child, other = start("idle"), start("idle")
    a.send(child.address, 1)
    os.kill(child.pid, signal.SIGSTOP)
    os.kill(other.pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(RuntimeTimeout, match="actor:0 to receive from idle"):
        a.recv(child.address, timeout=0.3)
    with pytest.raises((RuntimeTimeout, PeerLostError)):
        a.send(child.address, b"x" * 10_000_000, transport="net", timeout=0.5)
    with pytest.raises(RuntimeTimeout, match="may be stopped"):
        a.send(other.address, 1, timeout=0.5)
    assert time.monotonic() - begun < 5


def test_items_of_killed_producers_and_consumers_are_not_lost(open_endpoint, start):
    host, here = open_endpoint("host"), open_endpoint()
    server = ChannelServer(host)
    channel = create_on(here, host.address, "c", ChannelOptions(maxsize=5), exist_ok=False, timeout=10)
    producer = start("put", host.address)
    assert producer.stdout.readline() == "put\n"
    producer.kill()
    producer.wait()
    consumer = start("get", host.address)
    assert consumer.stdout.readline() == "got\n"
    late = Channel(here, host.address, "c").get_batch(100, min_items=5, fill=False, async_op=True)
    consumer.kill()
    got = late.wait(10)
    assert [number for number, _ in got] == list(range(5)), "the put that waited for room was never accepted"
    assert all(data == bytes([number]) * 300_000 for number, data in got)
    assert channel.qsize() == 0
    del got, late
    deadline = time.monotonic() + 5
    while (len(host.hub.arenas) or len(here.hub.arenas) or server._uses) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (len(host.hub.arenas), len(here.hub.arenas), dict(server._uses)) == (0, 0, {}), "the dead's memory is kept"
