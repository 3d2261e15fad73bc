"""The contract of a policy: a model that acts, and recomputes what it did when it is trained.

Text layout: ``input_ids`` [B, P+T] holds prompts left-padded to P and responses right-padded to T; ``attention_mask``
[B, P+T]; ``response_mask`` [B, T]. Outputs per response token are [B, T] and zero where ``response_mask`` is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from plugrl.errors import CheckpointError, UnsupportedCapability, one_of
from plugrl.models.moving import replace_tensor

_SUFFIX = "_forward"


class BasePolicy(torch.nn.Module, ABC):
    """A model that gives actions or tokens with log-probabilities, and recomputes them for training.

    A subclass implements :meth:`default_forward`, and :meth:`predict_action_batch` where it acts in an environment;
    further forwards are methods named ``{forward_type}_forward``. Everything else has a default.
    """

    # ----------------------------------------------------------------- forward
    def forward(self, forward_type: str = "default", **kwargs: Any) -> dict[str, Any]:
        """Run ``{forward_type}_forward(**kwargs)``. Raises UnsupportedCapability listing the forwards there are."""
        method = getattr(self, f"{forward_type}{_SUFFIX}", None)
        if method is None or forward_type.startswith("_"):  # torch has private methods of that form
            raise UnsupportedCapability(
                f"{type(self).__name__} has no forward type {forward_type!r}. It has: {one_of(self.forward_types())}."
            )
        return method(**kwargs)

    @classmethod
    def forward_types(cls) -> tuple[str, ...]:
        """Return the values of ``forward_type`` this policy answers to, sorted."""
        names = (name for name in dir(cls) if name.endswith(_SUFFIX) and not name.startswith("_"))
        return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if callable(getattr(cls, name))))

    @abstractmethod
    def default_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Recompute what a loss needs from the inputs cached when acting.

        Text policies take ``temperature=1.0``, ``compute_entropy=False``, ``compute_values=False`` and return
        ``logprobs`` and, when asked, ``entropy`` and ``values``, each [B, T]: position t belongs to the prediction of
        response token t. With ``compute_sum_pi_squared=True``, which only the optimal token baselines ask for, also
        ``sum_pi_squared``, the sum of the squared probabilities. Embodied policies return [B, ...].
        """

    # ----------------------------------------------------------------- acting
    def predict_action_batch(
        self, env_obs: Mapping[str, Any], mode: str = "train", compute_values: bool = True, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return ``(actions, {"prev_logprobs", "prev_values", "forward_inputs"})`` for a batch of observations.

        ``mode`` is ``"train"`` (sample) or ``"eval"``; ``forward_inputs`` is what :meth:`default_forward` needs later.
        """
        raise UnsupportedCapability(f"{type(self).__name__} predicts no actions; its category is another one.")

    def sft_inputs(self, env_obs: Mapping[str, Any], actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what ``sft_forward`` gets as ``forward_inputs`` to imitate actions [B, C, D] of the robot's units.

        Row-aligned tensors [B, ...]. Called on the host, beside training; the trainer adds ``action_mask`` bool [B, C],
        False for actions after the end of a demonstration. The default gives the tensors of the observation as they
        are, and ``action``.
        """
        tensors = {name: value for name, value in env_obs.items() if isinstance(value, torch.Tensor)}
        return {**tensors, "action": actions}

    def predict_values(self, obs: Mapping[str, Any]) -> torch.Tensor:
        """Return the values [B] or [B, 1] of a batch of observations."""
        raise UnsupportedCapability(f"{type(self).__name__} predicts no values of observations.")

    # ----------------------------------------------------------------- declarations
    def capabilities(self) -> frozenset[str]:
        """What algorithms may ask of this policy: ``logprobs``, ``entropy``, ``values``, ``actions``, ``sft``, ....

        The default trusts that :meth:`default_forward` returns the three usual outputs and adds what is implemented.
        """
        found = {"logprobs", "entropy", "values"}
        if type(self).predict_action_batch is not BasePolicy.predict_action_batch:
            found.add("actions")
        return frozenset(found | (set(self.forward_types()) - {"default"}))

    def measured(self) -> dict[str, Any]:
        """Plain values that the policy found out by running itself when it was built.

        A policy without weights (on the meta device) cannot run: see :meth:`take_measured`.
        """
        return {}

    def take_measured(self, values: Mapping[str, Any]) -> None:
        """Take over what the same policy with weights has :meth:`measured`."""

    def wrap_units(self) -> tuple[str, ...]:
        """Class names of the repeated blocks that a sharding engine wraps one by one.

        The default reads the declarations in use elsewhere, ``_fsdp_wrap_modules`` and ``_no_split_modules``.
        """
        for attribute in ("_fsdp_wrap_modules", "_no_split_modules"):
            names = getattr(self, attribute, None)
            if names:
                return tuple(names)
        return ()

    def lora_targets(self) -> tuple[str, ...]:
        """Names of the linear modules that adapters attach to; empty when the policy supports none."""
        return ()

    # ----------------------------------------------------------------- adapters
    def adapter_config(self) -> dict[str, Any] | None:
        """Return the configuration of the adapter that is trained on frozen weights, None without one.

        Parameters of an adapter have published names of their own, those of the adapter's files; ``is_saved`` holds
        for them alone.
        """
        return None

    def adapter_disabled(self) -> AbstractContextManager[None]:
        """Return the context in which the policy computes without its adapter."""
        return nullcontext()

    def merged_tensors(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Turn the stream of all full tensors under published names into that of the same policy without an adapter.

        What the adapter adds is added to the weights; tensors without an adapter pass as they are.
        """
        return iter(tensors)

    def critic_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that belong to a value head, so that they may be trained differently."""
        return ()

    # ----------------------------------------------------------------- weights under their published names
    def published_name(self, name: str) -> str | None:
        """Map the name of a parameter or buffer to its key in the model family's checkpoints.

        None leaves it out: a tied duplicate or something that is rebuilt.
        """
        return name

    def load_published(self, state: Iterable[tuple[str, torch.Tensor]], strict: bool = True) -> None:
        """Copy full tensors, given under published names, into this (unsharded) policy.

        ``state`` is consumed one tensor at a time. Raises CheckpointError for a name the policy lacks (strict), a
        tensor that never came (strict), or another shape.
        """
        own = self.state_dict(keep_vars=True)
        targets = {published: tensor for name, tensor in own.items() if (published := self.published_name(name))}
        loaded: set[int] = set()
        for name, tensor in state:
            target = targets.get(name)
            if target is None:
                if strict:
                    raise CheckpointError(f"{type(self).__name__} has no parameter {name!r}.")
                continue
            if target.shape != tensor.shape:
                raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(target.shape)}.")
            with torch.no_grad():
                target.copy_(tensor)
            loaded.add(id(target))
        missing = sorted(name for name, target in targets.items() if id(target) not in loaded)
        if strict and missing:
            raise CheckpointError(
                f"{type(self).__name__} did not receive {', '.join(missing[:5])} ({len(missing)} in all)."
            )

    def adopt_published(self, state: Mapping[str, torch.Tensor]) -> None:
        """Do what :meth:`load_published` does, without a copy where a tensor is as the policy holds its own.

        A parameter of the same type, on the same device, then *is* the tensor that was given: it must stay as it is,
        and the policy must not be trained. Raises CheckpointError before anything is changed.
        """
        own = self.state_dict(keep_vars=True)
        targets = {published: tensor for name, tensor in own.items() if (published := self.published_name(name))}
        unknown, missing = sorted(state.keys() - targets.keys()), _lacking(targets, state)
        if unknown or missing:
            raise CheckpointError(
                f"{type(self).__name__} has no parameter {', '.join(unknown[:5]) or '(none)'} ({len(unknown)} in all) "
                f"and did not receive {', '.join(missing[:5]) or '(none)'} ({len(missing)} in all)."
            )
        for name, tensor in state.items():
            if targets[name].shape != tensor.shape:
                raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(targets[name].shape)}.")
        for name, tensor in state.items():
            target = targets[name]
            if target.dtype == tensor.dtype and target.device == tensor.device and tensor.is_contiguous():
                replace_tensor(target, tensor)
            else:
                with torch.no_grad():
                    target.copy_(tensor)

    def merge_published(
        self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], device: torch.device
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Turn the tensors of a policy with an adapter into those of this one, which has none.

        ``tensors`` are the frozen ones and the adapter's under their published names, ``adapter`` is what
        :meth:`adapter_config` gave; what is computed is computed on ``device``, as :meth:`merged_tensors` would.
        """
        raise UnsupportedCapability(f"{type(self).__name__} cannot merge an adapter that it was not built with.")

    def is_saved(self, name: str) -> bool:
        """Whether the tensor of this published name stands in checkpoints of a training run.

        All do, except where an adapter is trained on a frozen base: then only the adapter's do.
        """
        return True

    def save_config(self, directory: str | Path) -> None:
        """Write what a model folder holds beside its weights: configuration, tokenizer. The default has nothing.

        A policy whose checkpoints hold an adapter writes ``adapter_config.json``; its weights are then stored as
        ``adapter_model.safetensors``.
        """

    def save_pretrained(self, directory: str | Path, state: Mapping[str, torch.Tensor]) -> None:
        """Write a folder that the model family's own loader reads; ``state`` maps published names to full tensors.

        The weights keep the type they come in; tensors that share memory are separated.
        """
        from safetensors.torch import save_file

        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        self.save_config(folder)
        is_adapter = (folder / "adapter_config.json").is_file()
        tensors: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for name, tensor in state.items():
            value = tensor.detach().cpu().contiguous()
            storage = value.untyped_storage().data_ptr()
            tensors[name] = value.clone() if storage in seen else value
            seen.add(storage)
        file = folder / ("adapter_model.safetensors" if is_adapter else "model.safetensors")
        save_file(tensors, file, metadata={"format": "pt"})


def _lacking(targets: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names that did not come, but for tensors that came under another of their names."""
    given = {id(targets[name]) for name in state if name in targets}
    return sorted(name for name, target in targets.items() if id(target) not in given)
