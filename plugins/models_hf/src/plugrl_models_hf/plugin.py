"""The manifest: two model types, their configuration schema and their tokenizer. Imports nothing heavy."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, ModelEntry, Plugin

plugin = Plugin(
    name="models_hf",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="Causal language models and value models from Hugging Face transformers",
    models=(
        ModelEntry(
            model_type="causal_lm",
            category="language",
            target="plugrl_models_hf.policy:build_causal_lm",
            schema="plugrl_models_hf.config:CausalLMConfig",
            processor="plugrl_models_hf.tokenizer:build_processor",
            example="plugrl_models_hf.example:causal_lm",
            summary="any Hugging Face causal language model: a folder, a GGUF file or a configuration",
        ),
        ModelEntry(
            model_type="causal_lm_value",
            category="value",
            target="plugrl_models_hf.value:build_causal_lm_value",
            schema="plugrl_models_hf.config:CausalLMConfig",
            processor="plugrl_models_hf.tokenizer:build_processor",
            example="plugrl_models_hf.example:causal_lm_value",
            summary="the same backbones with a scalar head: values of states, for critics",
        ),
    ),
)
