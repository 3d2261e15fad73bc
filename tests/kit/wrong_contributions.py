"""Contributions that are wrong on purpose: ``WRONG`` names the one, and importing this module puts it in place."""

from __future__ import annotations

import os
from dataclasses import replace


def engine_forgets_to_load() -> None:
    """Load nothing from a checkpoint."""
    from plugrl_engine_fsdp.backends import DdpEngine

    DdpEngine.load_checkpoint = lambda self, local_path, **kwargs: None


def engine_leaves_out_a_tensor() -> None:
    """Stream all weights but the first."""
    from plugrl_engine_fsdp.backends import DdpEngine

    honest = DdpEngine.get_per_tensor_param
    DdpEngine.get_per_tensor_param = lambda self, merged=True: (iter(list(honest(self, merged)[0])[1:]), None)


def model_counts_padding() -> None:
    """Count positions from the first column."""
    import torch

    from plugrl_models_hf import policy

    owner = next(cls for cls in vars(policy).values() if isinstance(cls, type) and "default_forward" in vars(cls))
    honest = owner.default_forward

    def forward(self, forward_inputs, **kwargs):
        seen = torch.ones_like(forward_inputs["attention_mask"])
        return honest(self, {**forward_inputs, "attention_mask": seen}, **kwargs)

    owner.default_forward = forward


def rollout_reports_other_logprobs() -> None:
    """Report log-probabilities of a truncated distribution."""
    from plugrl_rollout_hf.backend import HFRolloutBackend

    honest = HFRolloutBackend.generate
    HFRolloutBackend.generate = lambda self, *arguments: [
        replace(item, logprobs=item.logprobs * 0.9) for item in honest(self, *arguments)
    ]


def rollout_keeps_its_version() -> None:
    """Take new weights and mark samples with the version of the old ones."""
    from plugrl_rollout_hf.backend import HFRolloutBackend

    HFRolloutBackend.weight_version = property(lambda self: 0)


globals()[os.environ["WRONG"]]()
