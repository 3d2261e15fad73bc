"""Channels against what else moves a tensor from one process to another on this machine.

Time from put to get of one item, a producer and a consumer process, one item on its way at a time: the channel of
PlugRL, that of `rlinf` (run by `--rlinf-python`, left out without it), `ray.put` and `ray.get` through an actor's
argument, `ray.util.queue`, and gloo's send and receive; beside them a copy of the same bytes in memory. Then a message
of 1 KiB beside 64 MiB messages on one pair, over one and over two connections; the makespan of skewed work over
consumers; and the time to make, use and end the connections of a pair. Prints the ratios; exits with 1 when one is
missed.

    python benchmarks/channel.py [--rlinf-python PATH] [--rounds 1.0] [--only put_get head_of_line makespan connections]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from plugrl.runtime.channel.channel import Channel, create_on
from plugrl.runtime.channel.record import ChannelOptions
from plugrl.runtime.channel.server import ChannelServer
from plugrl.runtime.transport import Endpoint, EndpointConfig

KIB, MIB = 2**10, 2**20
SIZES = {"1 KiB": KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
ROUNDS = {KIB: 300, MIB: 100, 64 * MIB: 20}
WARM_UP = 3
SECRET = b"benchmark" * 4
LEAST_OVER_RLINF = 5.0
LEAST_OF_COPY = 0.5
LEAST_OVER_ONE_FLOW = 10.0
MOST_OVER_BOUND = 1.05

Row = dict[str, Any]


def endpoint(folder: str, name: str, **settings: Any) -> Endpoint:
    """Open an endpoint of the benchmark's run."""
    return Endpoint(EndpointConfig(name=name, run_id="b", folder=folder, secret=SECRET, **settings))


def channel_of(here: Endpoint, server: str, name: str) -> Channel:
    """Return a channel, made by whoever comes first."""
    return create_on(here, server, name, ChannelOptions(), exist_ok=True, timeout=30)


# ----------------------------------------------------------------- put to get
def serve(folder: str, pipe: Any) -> None:
    """The process that serves channels."""
    torch.set_num_threads(1)
    with endpoint(folder, "channels") as here:
        ChannelServer(here)
        pipe.send(here.address)
        pipe.recv()


def produce(folder: str, server: str, rounds: dict[int, int]) -> None:
    """Put items with the time at which it did, and wait for each answer."""
    torch.set_num_threads(1)
    with endpoint(folder, "producer") as here:
        there, back = channel_of(here, server, "there"), channel_of(here, server, "back")
        for size, count in rounds.items():
            tensor = torch.zeros(size // 4)
            for _ in range(count + WARM_UP):
                there.put({"begun": time.monotonic(), "tensor": tensor})
                back.get()


def consume(folder: str, server: str, rounds: dict[int, int], pipe: Any) -> None:
    """Get items, and say how long each took."""
    torch.set_num_threads(1)
    with endpoint(folder, "consumer") as here:
        there, back = channel_of(here, server, "there"), channel_of(here, server, "back")
        found: dict[int, list[float]] = {}
        for size, count in rounds.items():
            for _ in range(count + WARM_UP):
                item = there.get()
                found.setdefault(size, []).append(time.monotonic() - item["begun"])
                assert item["tensor"].nbytes == size
                del item
                back.put(0)
        pipe.send({size: seconds[WARM_UP:] for size, seconds in found.items()})


def time_plugrl(rounds: dict[int, int]) -> dict[int, list[float]]:
    """Seconds from put to get by size."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe()
        result, sender = context.Pipe(duplex=False)
        server = context.Process(target=serve, args=(folder, theirs), daemon=True)
        server.start()
        address = ours.recv()
        workers = [
            context.Process(target=produce, args=(folder, address, rounds), daemon=True),
            context.Process(target=consume, args=(folder, address, rounds, sender), daemon=True),
        ]
        for worker in workers:
            worker.start()
        found = result.recv()
        for worker in workers:
            worker.join()
        ours.send("end")
        server.join()
    return dict(found)


def time_rlinf(python: str, rounds: dict[int, int]) -> dict[int, list[float]]:
    """The same, by the interpreter of an environment with `rlinf`."""
    script = Path(__file__).parent / "peers" / "rlinf_channel.py"
    sizes, counts = [str(size) for size in rounds], [str(max(5, count // 5)) for count in rounds.values()]
    done = subprocess.run(
        [python, str(script), "--sizes", *sizes, "--rounds", *counts],
        capture_output=True, text=True, env=_bare(), timeout=400, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"rlinf gave no result:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return {int(size): seconds for size, seconds in json.loads(lines[-1].removeprefix("RESULT ")).items()}


def _bare() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY_", "VIRTUAL_ENV"))}
    return kept | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}


def time_ray(rounds: dict[int, int]) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Seconds of `ray.put` and an actor that gets it, and of `ray.util.queue`."""
    import ray
    from ray.util.queue import Queue

    # Ray starts workers at a lower priority than what they are compared with.
    os.environ["RAY_worker_niceness"] = "0"
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=600 * MIB)

    @ray.remote(num_cpus=0)
    class Taker:
        def take(self, refs: list[Any]) -> float:
            item = ray.get(refs[0])
            return time.monotonic() - item["begun"]

        def drain(self, queue: Any, back: Any, count: int) -> list[float]:
            found = []
            for _ in range(count):
                item = queue.get()
                found.append(time.monotonic() - item["begun"])
                back.put(0)
            return found

    taker = Taker.remote()
    direct: dict[int, list[float]] = {}
    queued: dict[int, list[float]] = {}
    queue, back = Queue(actor_options={"num_cpus": 0}), Queue(actor_options={"num_cpus": 0})
    for size, count in rounds.items():
        tensor = torch.zeros(size // 4)
        for _ in range(count // 2 + WARM_UP):
            ref = ray.put({"begun": time.monotonic(), "tensor": tensor})
            direct.setdefault(size, []).append(ray.get(taker.take.remote([ref])))
        pending = taker.drain.remote(queue, back, count // 4 + WARM_UP)
        for _ in range(count // 4 + WARM_UP):
            queue.put({"begun": time.monotonic(), "tensor": tensor})
            back.get()
        queued[size] = ray.get(pending)[WARM_UP:]
        direct[size] = direct[size][WARM_UP:]
    ray.shutdown()
    return direct, queued


def gloo_rank(rank: int, file: str, rounds: dict[int, int], pipe: Any) -> None:
    """One end of gloo's send and receive."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    found: dict[int, list[float]] = {}
    begun, answer = torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    for size, count in rounds.items():
        tensor = torch.zeros(size // 4)
        for _ in range(count + WARM_UP):
            if rank == 0:
                begun[0] = time.monotonic()
                dist.send(begun, 1)
                dist.send(tensor, 1)
                dist.recv(answer, 1)
            else:
                dist.recv(begun, 0)
                dist.recv(tensor, 0)
                found.setdefault(size, []).append(time.monotonic() - float(begun))
                dist.send(answer, 0)
    if rank:
        pipe.send({size: seconds[WARM_UP:] for size, seconds in found.items()})
    dist.destroy_process_group()


def time_gloo(rounds: dict[int, int]) -> dict[int, list[float]]:
    """Seconds of gloo."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        result, sender = context.Pipe(duplex=False)
        ranks = [context.Process(target=gloo_rank, args=(rank, f"{folder}/s", rounds, sender)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        found = result.recv()
        for rank in ranks:
            rank.join()
    return dict(found)


def time_copy(rounds: dict[int, int]) -> dict[int, list[float]]:
    """Seconds to copy the bytes in memory, into pages that are there already, by one thread."""
    torch.set_num_threads(1)
    found: dict[int, list[float]] = {}
    for size, count in rounds.items():
        source, target = torch.zeros(size // 4), torch.ones(size // 4)
        for _ in range(count + WARM_UP):
            begun = time.perf_counter()
            target.copy_(source)
            found.setdefault(size, []).append(time.perf_counter() - begun)
    return {size: seconds[WARM_UP:] for size, seconds in found.items()}


def put_get(options: argparse.Namespace) -> list[Row]:
    """Compare all of them."""
    rounds = {size: max(5, int(count * options.rounds)) for size, count in ROUNDS.items()}
    measured = {"memory copy": time_copy(rounds), "plugrl": time_plugrl(rounds)}
    measured["gloo"] = time_gloo(rounds)
    measured["ray put/get"], measured["ray queue"] = time_ray(rounds)
    if options.rlinf_python:
        measured["rlinf 0.3.0"] = time_rlinf(options.rlinf_python, rounds)
    # A second time, so that the copy that is the measure stands on both sides of what it measures.
    again, copy_again = time_plugrl(rounds), time_copy(rounds)
    for size in rounds:
        measured["plugrl"][size] += again[size]
        measured["memory copy"][size] += copy_again[size]
    middle = {name: {size: statistics.median(rows[size]) for size in rounds} for name, rows in measured.items()}
    rows: list[Row] = []
    for label, size in SIZES.items():
        print(f"\nput to get, {label}")
        for name, seconds in middle.items():
            taken, ratio = seconds[size], seconds[size] / middle["plugrl"][size]
            print(f"  {name:12} {taken * 1e6:12.0f} us {size / taken / 1e9:8.2f} GB/s {ratio:8.2f} x plugrl")
            rows.append({"what": "put_get", "size": size, "by": name, "seconds": taken, "over_plugrl": ratio})
        if "rlinf 0.3.0" in middle:
            ratio = middle["rlinf 0.3.0"][size] / middle["plugrl"][size]
            rows.append(_judge(f"rlinf over plugrl, {label}", ratio, LEAST_OVER_RLINF))
    share = middle["memory copy"][64 * MIB] / middle["plugrl"][64 * MIB]
    rows.append(_judge("share of the copy's bandwidth at 64 MiB", share, LEAST_OF_COPY))
    return rows


def _judge(what: str, value: float, least: float = 0.0, most: float = float("inf")) -> Row:
    good = least <= value <= most
    bound = f">= {least:g}" if least else f"<= {most:g}"
    print(f"  {'ok    ' if good else 'MISSED'} {what}: {value:.2f} (wanted {bound})")
    return {"what": what, "value": value, "wanted": bound, "met": good}


# ----------------------------------------------------------------- small beside large
def receive_all(folder: str, pipe: Any, flows: int, small: int) -> None:
    """Take large messages all the time, and small ones, of which it says how long they took."""
    torch.set_num_threads(1)
    sender = pipe.recv()
    with endpoint(folder, "receiver", flows=flows) as here:
        pipe.send(here.address)

        def take_large() -> None:
            while here.recv(sender, "large") is not None:
                pass

        thread = threading.Thread(target=take_large)
        thread.start()
        found = []
        for _ in range(small):
            begun, _ = here.recv(sender, "small")
            found.append(time.monotonic() - begun)
        pipe.send(found)
        thread.join()


def small_beside_large(flows: int, transport: str, small: int) -> list[float]:
    """Seconds that messages of 1 KiB take beside 64 MiB messages that follow one another on the same pair."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, endpoint(folder, "sender", flows=flows) as here:
        ours, theirs = context.Pipe()
        receiver = context.Process(target=receive_all, args=(folder, theirs, flows, small), daemon=True)
        receiver.start()
        ours.send(here.address)
        peer = ours.recv()
        ended = threading.Event()
        large, payload = torch.zeros(16 * MIB), torch.zeros(256)

        def send_large() -> None:
            while not ended.is_set():
                here.send(peer, large, "large", transport=transport)
            here.send(peer, None, "large")

        thread = threading.Thread(target=send_large)
        thread.start()
        time.sleep(0.5)
        for _ in range(small):
            here.send(peer, (time.monotonic(), payload), "small")
            time.sleep(0.01)
        found = list(ours.recv())
        ended.set()
        thread.join()
        receiver.join()
    return found


def head_of_line(options: argparse.Namespace) -> list[Row]:
    """Compare one connection with two, through sockets and through shared memory."""
    small = max(100, int(200 * options.rounds))
    torch.set_num_threads(1)
    print("\n1 KiB beside 64 MiB on one pair: p50 and p99 of the small ones")
    rows, late = [], {}
    for flows, transport in ((1, "net"), (2, "net"), (2, "shm")):
        seconds = sorted(small_beside_large(flows, transport, small))
        p99 = late[flows, transport] = seconds[int(0.99 * (len(seconds) - 1))]
        print(f"  {flows} connection(s), {transport}: {seconds[len(seconds) // 2] * 1e3:8.2f} ms {p99 * 1e3:8.2f} ms")
        rows.append({"what": "head_of_line", "flows": flows, "transport": transport, "p99_s": p99})
    for name, transport in (("two, sockets", "net"), ("shared memory", "shm")):
        ratio = late[1, "net"] / late[2, transport]
        rows.append(_judge(f"p99 of one connection over {name}", ratio, LEAST_OVER_ONE_FLOW))
    return rows


# ----------------------------------------------------------------- skewed work
def makespan_of(balancer: str, costs: list[float], consumers: int) -> float:
    """Seconds until consumers, threads that sleep, have worked off items of these costs."""
    choices = {"consumers": consumers, "window": len(costs)} if balancer == "kk" else {}
    with tempfile.TemporaryDirectory() as folder:
        ends = [endpoint(folder, f"w:{number}") for number in range(consumers + 1)]
        ChannelServer(ends[0])
        options = ChannelOptions(balancer=balancer, balancer_options=tuple(choices.items()))
        channel = create_on(ends[0], ends[0].address, "work", options, exist_ok=False, timeout=30)
        for cost in costs:
            channel.put(cost, weight=cost)
        channel.close()

        def work(here: Endpoint) -> None:
            for cost in Channel(here, ends[0].address, "work"):
                time.sleep(cost)

        threads = [threading.Thread(target=work, args=(here,)) for here in ends[1:]]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        for end in ends:
            end.close()
    return seconds


def makespan(options: argparse.Namespace) -> list[Row]:
    """Compare the balancers on costs of a long tail (simulated work: consumers sleep)."""
    rng = random.Random(0)
    costs = [min(0.8, 0.04 * rng.paretovariate(1.2)) for _ in range(120)]
    consumers = 4
    bound = max(sum(costs) / consumers, max(costs))
    # The longest items come last: the order in which fifo does worst.
    costs.sort()
    print(f"\n{len(costs)} items over {consumers} consumers, simulated work, lower bound {bound:.2f} s")
    rows = []
    for balancer in ("fifo", "least_loaded", "kk", "weighted"):
        seconds = makespan_of(balancer, costs, consumers)
        print(f"  {balancer:12} {seconds:6.2f} s {seconds / bound:6.3f} x bound")
        rows.append({"what": "makespan", "balancer": balancer, "seconds": seconds, "over_bound": seconds / bound})
    rows.append(_judge("makespan over the bound, weighted", rows[-1]["over_bound"], most=MOST_OVER_BOUND))
    return rows


# ----------------------------------------------------------------- connections
def connections(options: argparse.Namespace) -> list[Row]:
    """Make, use and end the connections of a pair, again and again; nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        with endpoint(folder, "a") as a, endpoint(folder, "b") as b:
            made, ended, counts = [], [], []
            for number in range(100):
                begun = time.perf_counter()
                a.send(b.address, number)
                assert b.recv(a.address) == number
                made.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                a.disconnect(b.address)
                b.disconnect(a.address)
                ended.append(time.perf_counter() - begun)
                counts.append(len(os.listdir("/proc/self/fd")) + threading.active_count())
    print("\nconnections of a pair, 100 times")
    first, last = statistics.median(made) * 1e3, statistics.median(ended) * 1e3
    print(f"  make and use {first:.2f} ms, end {last:.2f} ms; descriptors and threads {counts[5]} -> {counts[-1]}")
    return [
        {"what": "connections", "make_ms": first, "end_ms": last},
        _judge("milliseconds to make, use and end", first + last, most=50.0),
        _judge("descriptors and threads that are left", counts[-1] - counts[5], most=0.5),
    ]


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "put_get": put_get,
    "head_of_line": head_of_line,
    "makespan": makespan,
    "connections": connections,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rlinf-python", default=os.environ.get("RLINF_PYTHON"), help="interpreter that has rlinf")
    parser.add_argument("--rounds", type=float, default=1.0, help="factor on the number of rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only:
        rows += PARTS[name](options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row.get("met", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
