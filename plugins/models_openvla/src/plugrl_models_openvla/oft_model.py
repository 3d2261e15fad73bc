"""The model of OpenVLA-OFT: all actions of a chunk in one pass, from slots that see everything and hold nothing."""

from __future__ import annotations

from typing import Any

import torch

from plugrl.errors import DataError
from plugrl_models_openvla.film import Film
from plugrl_models_openvla.folder_config import FolderConfig
from plugrl_models_openvla.model import OpenVLAModel, Sequences
from plugrl_models_openvla.oft_heads import L1ActionHead, ProprioProjector
from plugrl_models_openvla.slots import Slots


class OFTModel(OpenVLAModel):
    """OpenVLA with parallel decoding.

    Args:
        action_dim, num_chunks: numbers of an action, and actions of a chunk.
        stop_id: id of the stop token where it stays in the sequence; None where it does not.
        num_images: cameras.
        action_head, proprio_projector, film: what stands beside the language model where it is used.
        others: as in :class:`~plugrl_models_openvla.model.OpenVLAModel`.
    """

    action_head: L1ActionHead
    proprio_projector: ProprioProjector
    film: Film

    def __init__(
        self,
        config: FolderConfig,
        *,
        action_dim: int,
        num_chunks: int,
        stop_id: int | None = None,
        num_images: int = 1,
        action_head: L1ActionHead | None = None,
        proprio_projector: ProprioProjector | None = None,
        film: Film | None = None,
        **others: Any,
    ) -> None:
        super().__init__(config, **others)
        for name, module in (("action_head", action_head), ("proprio_projector", proprio_projector), ("film", film)):
            if module is not None:
                self.add_module(name, module)
        self.stop_id = stop_id
        self.num_images = num_images
        self._num_patches = config.num_patches
        self._chunk = {"action_dim": action_dim, "num_chunks": num_chunks, "num_images": num_images}

    def slots(self, prompt_length: int) -> Slots:
        """Return where the slots stand behind prompts of ``prompt_length`` columns."""
        return Slots(
            prompt_length=prompt_length,
            num_patches=self._num_patches,
            proprio=hasattr(self, "proprio_projector"),
            stop=self.stop_id is not None,
            **self._chunk,
        )

    def slot_states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        pixel_values: torch.Tensor,
        proprio: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the states [B, C * D, H] after the last norm that say what the slots hold, step after step.

        The first is that of the prompt's last token, which is also the one that is valued. ``input_ids`` and
        ``attention_mask`` [B, L], images, and the normalised state of the robot [B, P]. Raises DataError for inputs
        that the model was not made for.
        """
        slots = self.slots(input_ids.shape[1])
        hidden = self.states_of_all(self.sequences(input_ids, attention_mask, pixel_values, proprio))
        return hidden[:, slots.first : slots.end]

    def sequences(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        pixel_values: torch.Tensor,
        proprio: torch.Tensor | None = None,
    ) -> Sequences:
        """Return what goes into the language model; see :mod:`plugrl_models_openvla.slots`."""
        slots = self.slots(input_ids.shape[1])
        patches = self.embed_images(pixel_values, self._modulations(input_ids, attention_mask))
        self._check(patches.shape[1], proprio, slots)
        if slots.proprio:
            patches = torch.cat([patches, self.proprio_projector(proprio).to(patches.dtype)], dim=1)
        sequences = self.splice(input_ids, attention_mask, patches)
        rows, _, width = sequences.embeddings.shape
        sequences = sequences.extended(sequences.embeddings.new_zeros(rows, slots.count, width))
        return sequences if self.stop_id is None else sequences.extended(self._stop(input_ids))

    def states_of_all(self, sequences: Sequences) -> torch.Tensor:
        """Return the hidden states [B, S, H] after the last norm, where every token sees all that the mask shows."""
        seen = sequences.mask[:, None, None, :].expand(-1, 1, len(sequences), -1)
        return self.run(sequences.embeddings, seen, sequences.positions, None)

    def initialise(self) -> None:
        """Draw random weights from torch's generator."""
        super().initialise()
        for name in ("action_head", "proprio_projector", "film"):
            if hasattr(self, name):
                getattr(self, name).initialise()

    # ----------------------------------------------------------------- parts
    def _stop(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert self.stop_id is not None
        return self.embed_tokens(input_ids.new_full((len(input_ids), 1), self.stop_id))

    def _modulations(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Return what the mean embedding of all tokens but the slots makes of the towers; None without FiLM."""
        if not hasattr(self, "film"):
            return None
        embeddings = self.embed_tokens(input_ids)
        weights = attention_mask[..., None].to(embeddings.dtype)
        language = (embeddings * weights).sum(dim=1)
        count = weights.sum(dim=1)
        if self.stop_id is not None:
            language, count = language + self._stop(input_ids)[:, 0], count + 1
        return self.film(language / count, self.num_images)

    def _check(self, patches: int, proprio: torch.Tensor | None, slots: Slots) -> None:
        if patches != slots.num_patches * slots.num_images:
            raise DataError(
                f"model.num_images_in_input: the model takes {slots.num_images} images, each of {slots.num_patches} "
                f"patches; it was given {patches} patches."
            )
        if slots.proprio and proprio is None:
            raise DataError("model.use_proprio: the model takes the state of the robot, and it was not given.")
        if not slots.proprio and proprio is not None:
            raise DataError("model.use_proprio: the model was given the state of the robot, and it takes none.")
