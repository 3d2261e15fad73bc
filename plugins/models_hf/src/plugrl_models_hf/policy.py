"""The policy ``causal_lm``: log-probabilities and entropies of responses under a Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from plugrl.errors import UnsupportedCapability
from plugrl.models.factory import resolve_dtype
from plugrl_models_hf.adapter import Adapter
from plugrl_models_hf.base import HFPolicy, prepare, with_adapter
from plugrl_models_hf.config import resolve_config
from plugrl_models_hf.layout import TextLayout
from plugrl_models_hf.loading import load_model, random_model
from plugrl_models_hf.packing import enable_packing, packed
from plugrl_models_hf.statistics import Statistics, logits_statistics, token_statistics
from plugrl_models_hf.tokenizer import HFTextProcessor, build_processor


class CausalLMPolicy(HFPolicy):
    """A causal language model that scores its own responses.

    Logits are computed for valid response tokens only, in chunks when there are many.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: HFTextProcessor | None = None,
        *,
        adapter: Adapter | None = None,
        remove_padding: bool = True,
    ) -> None:
        super().__init__(model, processor, adapter)
        self._plain_head = has_plain_head(model)
        self._packs = remove_padding and self._plain_head and enable_packing(model, self._states)

    def capabilities(self) -> frozenset[str]:
        """Log-probabilities, entropies, supervised loss; a rollout backend can generate with it."""
        return frozenset({"logprobs", "entropy", "sft", "generate"})

    def measured(self) -> dict[str, Any]:
        """What is decided by comparing outputs."""
        return {**super().measured(), "plain_head": self._plain_head}

    def take_measured(self, values: Mapping[str, Any]) -> None:
        """As the contract says."""
        super().take_measured(values)
        self._plain_head = values["plain_head"]

    def default_forward(
        self,
        forward_inputs: Mapping[str, Any],
        *,
        temperature: float = 1.0,
        compute_entropy: bool = False,
        compute_values: bool = False,
        compute_sum_pi_squared: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Return ``logprobs`` and, when asked, ``entropy`` and ``sum_pi_squared``: fp32 [B, T], zero where
        ``response_mask`` is.

        ``forward_inputs`` holds input_ids and attention_mask [B, P+T] and response_mask [B, T]. Log-probabilities
        are those of the distribution at ``temperature`` (0 counts as 1). Raises UnsupportedCapability for values.
        """
        if compute_values:
            raise UnsupportedCapability("causal_lm has no value head: use the model type causal_lm_value for a critic.")
        layout = TextLayout.trim(forward_inputs)
        compute = self._statistics if self._plain_head else self._statistics_by_logits
        found = compute(
            layout,
            temperature=temperature,
            compute_entropy=compute_entropy,
            compute_sum_pi_squared=compute_sum_pi_squared,
        )
        outputs = {"logprobs": found.log_probs, "entropy": found.entropy, "sum_pi_squared": found.sum_pi_squared}
        return {name: layout.spread(values) for name, values in outputs.items() if values is not None}

    def sft_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the same as :meth:`default_forward` at temperature 1, for supervised training."""
        return self.default_forward(forward_inputs, **{**kwargs, "temperature": 1.0})

    def _statistics(self, layout: TextLayout, **options: Any) -> Statistics:
        """Run the backbone, then the head on the hidden states that predict valid response tokens."""
        layout = packed(layout) if self._packs else layout
        states = self._states(layout.model_inputs())
        head = self.model.get_output_embeddings()
        return token_statistics(
            head, layout.predictors(states), layout.tokens(), vocab_size=head.weight.shape[0], **options
        )

    def _states(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the backbone's last hidden states."""
        return self.model.base_model(**inputs).last_hidden_state

    def _statistics_by_logits(self, layout: TextLayout, **options: Any) -> Statistics:
        """Take the model's own logits of the response columns: for heads that do more than one matrix product."""
        logits = self.model(**layout.model_inputs(), logits_to_keep=layout.num_response).logits
        return logits_statistics(layout.predictors(logits), layout.tokens(), **options)


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are exactly the output embedding applied to the backbone's last hidden state.

    Some families scale or cap their logits, or scale the states. Rather than know them by name, watch one forward: the
    head must receive the backbone's own states, and what it returns (here a wide ramp) must come out unchanged.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or model.base_model is model:
        return False  # A head with an adapter does more than its weight says.
    if model.device.type == "meta":
        return False  # there are no states to compare: take_measured() says it
    received: list[torch.Tensor] = []

    def ramp(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        received.append(inputs[0])
        return torch.linspace(-200.0, 200.0, output.numel(), device=output.device).to(output.dtype).view_as(output)

    ids = torch.arange(min(8, model.config.vocab_size), device=model.device).unsqueeze(0)
    training = model.training
    handle = head.register_forward_hook(ramp)
    try:
        with torch.no_grad():
            logits = model.eval()(input_ids=ids, use_cache=False).logits
            states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        handle.remove()
        model.train(training)
    if len(received) != 1 or not torch.equal(received[0], states):
        return False
    return torch.equal(logits, ramp(head, (states,), logits))


def build_causal_lm(cfg: Any, torch_dtype: torch.dtype | None = None) -> CausalLMPolicy:
    """Build the policy that ``model:`` describes, on the CPU; the engine moves it.

    Raises ConfigError or another UserError naming the key that is wrong.
    """
    config = resolve_config(cfg)
    dtype = resolve_dtype(torch_dtype or config.precision)
    processor = build_processor(config)
    if config.path is None:
        model = random_model(AutoModelForCausalLM, config, dtype, processor.tokenizer)
    else:
        model, _ = load_model(AutoModelForCausalLM, config, dtype)
    prepare(model, gradient_checkpointing=config.enable_gradient_checkpointing)
    adapter = with_adapter(model, config, task="CAUSAL_LM")
    return CausalLMPolicy(model, processor, adapter=adapter, remove_padding=config.use_remove_padding)
