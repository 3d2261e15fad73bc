"""Text to ids and back: any Hugging Face tokenizer, or one with a token per character; and the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from plugrl.errors import ConfigError, DataError
from plugrl_models_hf.config import CausalLMConfig, CharacterTokenizerConfig, resolve_config
from plugrl_models_hf.gguf import converted_folder
from plugrl_models_hf.loading import model_folder, refuse_remote_code
from plugrl_models_hf.source import GGUF_SUFFIX, resolve_path

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class HFTextProcessor:
    """A Hugging Face tokenizer as the core's TextProcessor.

    refuse_unknown: text with a character the tokenizer lacks is a DataError instead of an unknown token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos_token_ids: Sequence[int] = (),
        system_prompt: str | None = None,
        refuse_unknown: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._refuse_unknown = refuse_unknown
        own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self._eos_token_ids = tuple(dict.fromkeys((*own, *eos_token_ids)))

    @property
    def pad_token_id(self) -> int:
        """The id that fills batches: the tokenizer's own, else its first end token, else 0."""
        if self.tokenizer.pad_token_id is not None:
            return int(self.tokenizer.pad_token_id)
        return self._eos_token_ids[0] if self._eos_token_ids else 0

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a response: the tokenizer's end token and those of generation_config.json."""
        return self._eos_token_ids

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return len(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` without special tokens. Raises DataError for a character it does not know."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if self._refuse_unknown and self.tokenizer.unk_token_id in ids:
            known = self.tokenizer.get_vocab()
            strange = sorted({character for character in text if character not in known})
            raise DataError(f"The tokenizer has no token for {', '.join(map(repr, strange))}, in {text[:80]!r}.")
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of a conversation. Raises ConfigError when the tokenizer has no chat template."""
        if self.tokenizer.chat_template is None:
            raise ConfigError("model.chat_template: the tokenizer has no chat template; give one or use plain prompts.")
        conversation = [dict(message) for message in messages]
        if self._system_prompt is not None and not any(message["role"] == "system" for message in conversation):
            conversation.insert(0, {"role": "system", "content": self._system_prompt})
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return self.encode(text)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer's files, chat template included, in the Hugging Face layout."""
        self.tokenizer.save_pretrained(str(directory))


def build_processor(cfg: Any) -> HFTextProcessor:
    """Return the processor that ``model:`` describes, without loading weights. ``cfg`` as for ``get_model``."""
    config = resolve_config(cfg)
    characters = isinstance(config.tokenizer, CharacterTokenizerConfig)
    return HFTextProcessor(
        build_tokenizer(config),
        eos_token_ids=() if config.path is None else _generation_eos(config),
        system_prompt=config.system_prompt,
        refuse_unknown=characters,
    )


def build_tokenizer(cfg: CausalLMConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of ``cfg`` with its chat template.

    Raises ConfigError when none lies where the configuration says, or when it asks for code that is not allowed.
    """
    if isinstance(cfg.tokenizer, CharacterTokenizerConfig):
        tokenizer: PreTrainedTokenizerBase = character_tokenizer(cfg.tokenizer.alphabet)
    else:
        tokenizer = _load_tokenizer(cfg)
    if cfg.chat_template is not None:
        tokenizer.chat_template = _template_text(cfg.chat_template)
    return tokenizer


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with ids <pad>=0, <eos>=1, <unk>=2, then one per character of ``alphabet`` in its order.

    Its chat template is the plain text of the messages. Raises ConfigError for an empty or repeating alphabet.
    """
    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise ConfigError(f"model.tokenizer.alphabet: needs different characters, got {alphabet!r}.")
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, UNKNOWN, *alphabet))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=PLAIN_TEMPLATE,
    )


def _load_tokenizer(cfg: CausalLMConfig) -> PreTrainedTokenizerBase:
    if cfg.tokenizer is None:
        key, folder = "model.path", model_folder(cfg)
    else:
        key, folder = "model.tokenizer", resolve_path(str(cfg.tokenizer), "model.tokenizer")
        if folder.suffix.lower() == GGUF_SUFFIX:
            folder = converted_folder(folder, cfg.cache_dir)
    if not cfg.trust_remote_code:
        refuse_remote_code(folder / "tokenizer_config.json", key)
    try:
        return AutoTokenizer.from_pretrained(
            folder, trust_remote_code=cfg.trust_remote_code, local_files_only=True, padding_side="left"
        )
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"{key}: no tokenizer that transformers can load in {folder}: {error}") from error


def _generation_eos(cfg: CausalLMConfig) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json names beside the weights, if there is one."""
    file = model_folder(cfg) / "generation_config.json"
    if not file.is_file():
        return ()
    value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    return tuple(value) if isinstance(value, list) else () if value is None else (int(value),)


def _template_text(template: str) -> str:
    """Return a chat template given as text, or read the file of that name."""
    if "{" in template:
        return template
    file = Path(template).expanduser()
    if not file.is_file():
        raise ConfigError(f"model.chat_template: {template!r} is neither a Jinja template nor a file.")
    return file.read_text(encoding="utf-8")
