"""Records to token ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from plugrl.data.records import PromptRecord
from plugrl.errors import ConfigError, DataError, one_of
from plugrl.models.processor import TextProcessor

logger = logging.getLogger(__name__)

TRUNCATIONS = ("error", "left", "right")
"""What may be done with a prompt that is too long; left and right name the side that is cut off."""


@dataclass(frozen=True)
class Tokenized:
    """Records with the token ids of their prompts, row by row; ``responses`` only for supervised training."""

    records: list[PromptRecord]
    prompts: list[list[int]]
    responses: list[list[int]] | None = None

    def __len__(self) -> int:
        return len(self.records)


def tokenize_prompts(
    records: Sequence[PromptRecord],
    processor: TextProcessor,
    max_prompt_length: int,
    filter_overlong: bool = False,
    truncation: str = "error",
    template: str | None = None,
    limit: int | None = None,
) -> Tokenized:
    """Tokenise prompts: chat messages through the model's chat template, plain prompts as they are.

    Args:
        processor: the model's tokenizer.
        max_prompt_length: tokens at most.
        filter_overlong: drop longer prompts, and say how many.
        truncation: what to do with longer ones that are not dropped: ``error``, ``left`` or ``right`` (side cut off).
        template: text with ``{prompt}`` for plain prompts (for messages: around the last one's content).
        limit: prompts to keep at most; the rest is not looked at.

    Raises:
        DataError: a prompt that is too long, or none left.
        ConfigError: an unknown truncation, or a template without ``{prompt}``.
    """
    if truncation not in TRUNCATIONS:
        raise ConfigError(f'data.truncation: "{truncation}" is none of {one_of(TRUNCATIONS)}.')
    if template is not None and "{prompt}" not in template:
        raise ConfigError(f"data.template: {template!r} lacks {{prompt}}.")
    kept: list[PromptRecord] = []
    prompts: list[list[int]] = []
    dropped = 0
    for index, record in enumerate(records):
        if len(kept) == limit:
            break
        ids = _encode_prompt(record, processor, template)
        if len(ids) > max_prompt_length:
            if filter_overlong:
                dropped += 1
                continue
            ids = _truncate(ids, max_prompt_length, truncation, index, record)
        kept.append(record)
        prompts.append(ids)
    if records and not kept:
        raise DataError(
            f"data.max_prompt_length: all {len(records)} prompts are longer than {max_prompt_length} tokens."
        )
    if dropped:
        logger.info("Dropped %d of %d prompts: longer than %d tokens.", dropped, dropped + len(kept), max_prompt_length)
    return Tokenized(kept, prompts)


def tokenize_examples(
    records: Sequence[PromptRecord],
    processor: TextProcessor,
    max_prompt_length: int,
    max_response_length: int,
    filter_overlong: bool = False,
    truncation: str = "error",
    template: str | None = None,
    limit: int | None = None,
) -> Tokenized:
    """Tokenise prompts and their responses for supervised training; an end token closes each response.

    A response that is too long loses its end (and so its end token), whatever ``truncation`` says. Other arguments and
    errors are those of :func:`tokenize_prompts`; a record without response is a DataError too.
    """
    tokenized = tokenize_prompts(records, processor, max_prompt_length, filter_overlong, truncation, template, limit)
    end = processor.eos_token_ids[:1]
    responses = []
    for index, record in enumerate(tokenized.records):
        if record.response is None:
            raise DataError(f'Row {index} ({record.text[:60]!r}) has no "response" to train on.')
        responses.append([*processor.encode(record.response), *end][:max_response_length])
    return Tokenized(tokenized.records, tokenized.prompts, responses)


def _encode_prompt(record: PromptRecord, processor: TextProcessor, template: str | None) -> list[int]:
    if record.messages is None:
        text = record.text if template is None else template.replace("{prompt}", record.text)
        return list(processor.encode(text))
    messages = list(record.messages)
    if template is not None:
        messages[-1] = {**messages[-1], "content": template.replace("{prompt}", str(messages[-1]["content"]))}
    return list(processor.apply_template(messages, add_generation_prompt=True))


def _truncate(ids: list[int], limit: int, truncation: str, index: int, record: PromptRecord) -> list[int]:
    if truncation == "error":
        raise DataError(
            f"Prompt {index} ({record.text[:60]!r}) has {len(ids)} tokens, more than data.max_prompt_length, {limit}. "
            "Raise it, set data.filter_overlong_prompts=true, or data.truncation=left or right."
        )
    return ids[-limit:] if truncation == "left" else ids[:limit]
