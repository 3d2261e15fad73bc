"""Tokenizers: that of a checkpoint, or one with a token per word for models that are built from a configuration."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from plugrl.errors import ConfigError
from plugrl_models_hf.quiet import quiet
from plugrl_models_openvla.prompts import SPACE_PIECE, prompt_text

UNKNOWN, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each of ``words``, and one for each end of the prompt around them.

    A word may be several, such as "pick up": it is still one token. Raises ConfigError for no words or empty ones.
    """
    lower = [" ".join(word.lower().split()) for word in words]
    if not lower or not all(lower):
        raise ConfigError(f"model.tokenizer.words: needs words, none of them empty, got {list(words)!r}.")
    start, end = (part.strip() for part in prompt_text("\0").split("\0"))
    pieces = list(dict.fromkeys((UNKNOWN, BOS, EOS, PAD, SPACE_PIECE, start, end, *lower)))
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    # The longest first; what is none of them is still found, as a word that is unknown.
    known = sorted((re.escape(piece) for piece in (start, end)), key=len, reverse=True)
    known += [rf"\b{re.escape(word)}\b" for word in sorted(set(lower), key=len, reverse=True)]
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex("|".join([*known, r"\w+", r"[^\w\s]"])), behavior="removed", invert=True
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=UNKNOWN, bos_token=BOS, eos_token=EOS, pad_token=PAD, padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def load_tokenizer(folder: Path, key: str) -> Any:
    """Return the tokenizer in ``folder``. Raises ConfigError when transformers finds none."""
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, padding_side="left")
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"{key}: no tokenizer that transformers can load in {folder}: {error}") from error


def files_of(tokenizer: Any) -> Mapping[str, bytes]:
    """Return the files of a tokenizer by name, as it saves them."""
    with tempfile.TemporaryDirectory(prefix="plugrl-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir()) if file.is_file()}
