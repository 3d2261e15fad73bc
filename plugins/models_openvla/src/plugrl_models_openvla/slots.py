"""Where things stand in the sequence of a model that gives a whole chunk of actions in one pass.

``[first token][patches of all cameras][proprioception][rest of the prompt][A slots][stop token]``, with A = steps times
dimensions, step after step. All tokens see each other. The shift of a language model is kept: what slot k says is read
one position before it (Kim et al., "Fine-Tuning Vision-Language-Action Models", https://arxiv.org/abs/2502.19645).
"""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.errors import ConfigError, one_of

VALUE_TYPES = ("action_level", "chunk_level")


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Positions in sequences.

    Args:
        prompt_length: columns of the prompts, padding included.
        num_patches: patches of one image.
        action_dim, num_chunks: numbers of an action, and actions of a chunk.
        num_images: cameras.
        proprio: whether the state of the robot is a token.
        stop: whether the stop token stays behind the slots: it does in the published L1 models and the ``official``
            version of RLinf, not in its ``rlinf`` version.
    """

    prompt_length: int
    num_patches: int
    action_dim: int
    num_chunks: int
    num_images: int = 1
    proprio: bool = False
    stop: bool = False

    @property
    def count(self) -> int:
        """Number of slots."""
        return self.action_dim * self.num_chunks

    @property
    def inserted(self) -> int:
        """Tokens between the first one and the rest of the prompt."""
        return self.num_patches * self.num_images + int(self.proprio)

    @property
    def first(self) -> int:
        """Position whose state says what the first slot holds: that of the last token of the prompt."""
        return self.inserted + self.prompt_length - 1

    @property
    def end(self) -> int:
        """One above the position whose state says what the last slot holds."""
        return self.first + self.count

    @property
    def value(self) -> int:
        """Position whose state is valued: the last token of the prompt, whatever the padding is."""
        return self.first

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self.inserted + self.prompt_length + self.count + int(self.stop)

    @property
    def input_length(self) -> int:
        """Tokens of prompt, slots and stop token, as published code passes them in."""
        return self.prompt_length + self.count + 1


def value_outputs(value_type: str, num_chunks: int) -> int:
    """Return how many values an observation has: one, or one for each step of the chunk. Raises ConfigError."""
    if value_type not in VALUE_TYPES:
        raise ConfigError(f"model.value_type: {value_type!r} is none of {one_of(VALUE_TYPES)}.")
    return num_chunks if value_type == "action_level" else 1
