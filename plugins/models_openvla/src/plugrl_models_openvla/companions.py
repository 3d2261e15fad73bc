"""Files of heads beside the weights of a checkpoint: ``action_head--150000_checkpoint.safetensors`` and the like.

Published training scripts write each head into a file of its own, under names that begin with ``module.`` when it was
trained in parallel. Here such a file is one more file of the weights, and is written back under its own names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plugrl.errors import CheckpointError
from plugrl_models_openvla.weight_files import Shard, WeightFiles, read_shard

_PARALLEL = re.compile(r"^(?:module\.)+")


@dataclass(frozen=True)
class HeadShard(Shard):
    """The file of one head; ``head`` stands before the names of its tensors in the model."""

    head: str = ""

    @property
    def is_indexed(self) -> bool:
        """Whether the index lists the tensors: only those of the published model."""
        return False

    def own_name(self, stored: str) -> str | None:
        """Return what the model calls a stored tensor."""
        name = _PARALLEL.sub("", stored)
        return name if name.startswith(f"{self.head}.") else f"{self.head}.{name}"


def with_companions(files: WeightFiles, heads: Sequence[str]) -> WeightFiles:
    """Return the files of the weights with those of the heads that lie beside them.

    Raises CheckpointError for two files of one head, and for a file that would have to be unpickled.
    """
    known = {shard.file for shard in files.shards}
    found = [shard for head in heads if (shard := _companion(files.folder, head, known)) is not None]
    return replace(files, shards=(*found, *files.shards))


def _companion(folder: Path, head: str, known: set[str]) -> HeadShard | None:
    named = [file for file in sorted(folder.iterdir()) if file.name.startswith(head) and file.name not in known]
    stored = [file for file in named if file.suffix == ".safetensors"]
    if len(stored) > 1:
        names = ", ".join(file.name for file in stored)
        raise CheckpointError(f"model.path: {folder} has several files of the {head}: {names}. Leave one.")
    pickled = [file.name for file in named if file.suffix in (".pt", ".pth", ".bin")]
    if not stored and pickled:
        raise CheckpointError(
            f"model.path: {folder / pickled[0]} would have to be unpickled, which could run code. Convert it once: "
            f'safetensors.torch.save_file(torch.load("{pickled[0]}", weights_only=True), "{head}.safetensors")'
        )
    if not stored:
        return None
    shard = read_shard(stored[0])
    return HeadShard(shard.file, shard.header, shard.tensors, head)
