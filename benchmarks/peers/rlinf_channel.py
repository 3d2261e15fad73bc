"""Times from put to get through the channel of `rlinf`: run by the interpreter of an environment that has it.

Two workers; the second one answers each item through another channel, so that one item is on its way at a time.
Prints one line of JSON: seconds by size in bytes.

    python benchmarks/peers/rlinf_channel.py --sizes 1024 1048576 --rounds 50 20
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import ray
import torch
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker


class Producer(Worker):
    """Puts an item with the time at which it did, and waits for the answer."""

    def run(self, there: Channel, back: Channel, size: int, rounds: int) -> None:
        tensor = torch.zeros(size // 4)
        for _ in range(rounds):
            there.put({"begun": time.monotonic(), "tensor": tensor})
            back.get()


class Consumer(Worker):
    """Gets items and says how long each took."""

    def run(self, there: Channel, back: Channel, size: int, rounds: int) -> list[float]:
        seconds = []
        for _ in range(rounds):
            item = there.get()
            seconds.append(time.monotonic() - item["begun"])
            back.put(0)
        return seconds


def use_a_local_ray() -> None:
    """Let `rlinf`, which joins any Ray it finds, start one of its own on the loopback interface."""
    start = ray.init

    def start_local(address: str = "", **options: Any) -> Any:
        return start(address="local", num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", **options)

    ray.init = start_local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    use_a_local_ray()
    cluster = Cluster(num_nodes=1)
    place = NodePlacementStrategy([0])
    producer = Producer.create_group().launch(cluster, place, name="producer")
    consumer = Consumer.create_group().launch(cluster, place, name="consumer")
    there, back = Channel.create("there"), Channel.create("back")
    found = {}
    for size, rounds in zip(arguments.sizes, arguments.rounds, strict=True):
        producer.run(there, back, size, rounds + 3)
        found[size] = consumer.run(there, back, size, rounds + 3).wait()[0][3:]
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
