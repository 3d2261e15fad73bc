"""`weight_sync:`: how new weights reach the rollout."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plugrl.config.schema.base import Section


class BucketSyncConfig(Section):
    """Options of `type: bucket`, and of how `patch` travels."""

    size_megabytes: int | None = Field(None, ge=1)
    """Size of a bucket; null takes `rollout.update_weights_bucket_megabytes`."""

    device: Literal["host", "accelerator"] = "host"
    """Where buckets are filled: on the accelerator a bucket is copied to the host as a whole, which costs its memory
    there, on the host tensor by tensor."""

    staged: bool = True
    """Load the weights once all have come; false loads them as they come, which saves the memory of a copy on the host,
    and leaves a rollout that cannot generate when the transfer breaks."""


class PatchSyncConfig(Section):
    """Options of `type: patch`."""

    dense_above: float = Field(1 / 3, ge=0, le=1)
    """Send a tensor whole when more of its elements than this share have changed."""


class WeightSyncConfig(Section):
    """Synchronisation of the rollout with the trained weights."""

    type: str = "auto"
    """`bucket`, `patch`, `handle`, `full` or what a plugin registered; `auto` is `handle` where all rollout workers
    share the node of the actor's first rank, else `bucket`."""

    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Cast floating-point weights to this type on the way; null sends them as they are."""

    adapter_only: bool = True
    """Of a LoRA policy send the adapter alone, the frozen weights once, where the rollout backend can merge them."""

    bucket: BucketSyncConfig = BucketSyncConfig()
    """Options of buckets."""

    patch: PatchSyncConfig = PatchSyncConfig()
    """Options of patches."""
