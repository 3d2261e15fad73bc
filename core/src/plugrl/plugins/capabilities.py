"""What a platform may declare that it can do: one dotted id for each thing that the conformance kit can show.

A declared capability must pass its checks, one that is not declared is not asked for. The ids belong to the contract of
manifests; :mod:`plugrl.platforms.capabilities` offers them to everybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plugrl.errors import nearest

LEVELS: Mapping[str, str] = {
    "L0": "manifest",
    "L1": "device",
    "L2": "numerics",
    "L3": "distributed",
    "L4": "runtime",
    "L5": "reinforcement learning",
}
"""Levels of the conformance kit, each with what it is about. L0 asks for no capability: it always runs."""

CAPABILITIES_BY_LEVEL: Mapping[str, Mapping[str, str]] = {
    "L1": {
        "platform.devices": "devices are counted, chosen by index and waited for",
        "platform.index": "an index beyond the last device is refused, by the platform and by torch's factories",
        "platform.copy": "tensors travel between host and device and between devices, bit for bit",
        "platform.mixed_device_error": "operands on different devices are refused",
        "platform.accelerator": "torch.accelerator answers for this device",
        "platform.rng": "the same seed gives the same numbers on the device",
        "platform.rng.state": "the state of the generator can be read and restored, and generator= is respected",
        "platform.rng.isolation": "drawing on one device moves neither another device's generator nor the host's",
        "platform.memory.stats": "allocated and peak memory are counted per device",
        "platform.memory.exact": "the counters are true to the byte, but for rounding to 512",
        "platform.memory.limit": "an allocation beyond the memory raises torch.OutOfMemoryError and leaves it usable",
        "platform.streams": "streams and events order work and tell when it is done",
        "platform.visible_env": "the variable that masks devices is respected",
        "platform.pin_memory": "host memory can be pinned and says so",
        "platform.ipc": "device memory can be shared with another process",
    },
    "L2": {
        "numerics.fp32": "forward and backward of the usual layers agree with the host in fp32",
        "numerics.bf16": "the same in bf16, and the arithmetic really is bf16",
        "numerics.fp16": "the same in fp16, and the arithmetic really is fp16",
        "numerics.autocast": "autocast casts what it should and leaves alone what it should not",
        "numerics.conv": "convolutions agree with the host, gradients included",
        "numerics.rnn": "recurrent layers agree with the host",
        "numerics.attention": "scaled dot-product attention agrees with the host, with masks and gradients",
        "numerics.lm": "a tiny language model: loss, gradients and greedy tokens agree with the host",
        "numerics.optimizer": "steps of AdamW and clipping agree with the host",
        "ckpt.native_load": "torch.load brings tensors back to the device that they came from",
        "ckpt.roundtrip": "weights and optimizer state saved on the device load on the host, and back",
    },
    "L3": {
        "dist.all_reduce.sum": "all_reduce with SUM",
        "dist.all_reduce.max": "all_reduce with MAX",
        "dist.all_reduce.avg": "all_reduce with AVG",
        "dist.all_gather": "all_gather, in the order of ranks",
        "dist.reduce_scatter": "reduce_scatter",
        "dist.broadcast": "broadcast from any rank",
        "dist.all_to_all": "all_to_all",
        "dist.p2p": "send and receive",
        "dist.object": "collectives of Python objects",
        "dist.barrier": "nobody passes a barrier before the last one is there",
        "dist.native_backend": "collectives of device tensors run on the vendor's own backend",
        "dist.ddp": "DistributedDataParallel agrees with one process",
        "dist.fsdp2": "fully_shard agrees with one process, clipping included",
        "dist.fsdp2.mixed_precision": "the same with parameters in bf16 and reductions in fp32",
        "dist.hsdp": "sharding within and replicating across nodes agrees with one process",
        "dist.dtensor": "DTensor distributes and gathers tensors",
        "dist.dtensor.random": "random numbers of a DTensor: replicas agree, shards differ, the seed decides",
        "ckpt.sharded": "a sharded checkpoint is written and read",
        "ckpt.async": "a checkpoint is written in the background",
    },
    "L4": {
        "runtime.resource": "the cluster accepts the platform's resource and says readably when it is short",
        "runtime.index": "each worker gets a device of its own",
        "runtime.visible_env": "the mask of a worker is set before its SDK loads",
        "runtime.fingerprint": "all workers have the driver's plugins, and a difference is reported",
        "runtime.worker_death": "a worker that dies is a typed error within a deadline",
    },
    "L5": {
        "rl.grpo": "steps of GRPO with a tiny policy through the real runner",
        "rl.weight_sync": "after a synchronisation the rollout has the trainer's weights, bit for bit",
        "rl.resume": "a resumed run equals one without interruption",
    },
}

PLATFORM_CAPABILITIES: Mapping[str, str] = {
    name: text for capabilities in CAPABILITIES_BY_LEVEL.values() for name, text in capabilities.items()
}
"""Capability id -> what it means, in one line."""

_LEVEL_OF = {name: level for level, capabilities in CAPABILITIES_BY_LEVEL.items() for name in capabilities}


def level_of(capability: str) -> str:
    """Return the level (``"L2"``) that checks a capability. Raises KeyError for an id that does not exist."""
    return _LEVEL_OF[capability]


def bad_capabilities(names: Iterable[Any]) -> Iterator[str]:
    """Yield a phrase for each name that is no capability of a platform, with the nearest that is, and for repeats."""
    seen = set()
    for name in names:
        if name in seen:
            yield f"capability {name!r} is declared twice"
        seen.add(name)
        if name not in PLATFORM_CAPABILITIES:
            like = nearest(str(name), PLATFORM_CAPABILITIES)
            yield f"{name!r} is no capability of a platform" + (f"; did you mean {like}?" if like else "")
