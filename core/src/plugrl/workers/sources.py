"""From the configuration to the samples of supervised training, whatever the data set consists of."""

from __future__ import annotations

from plugrl.config.schema import RunConfig
from plugrl.data.examples import TextExamples
from plugrl.data.records import PromptRecord
from plugrl.data.registry import load_source
from plugrl.data.samples import SampleSplits
from plugrl.data.tokenization import tokenize_examples
from plugrl.models import get_processor
from plugrl.models.processor import TextProcessor
from plugrl.workers.demonstrations import acts_in_environments, demonstration_samples


def supervised_samples(config: RunConfig) -> SampleSplits:
    """Load and tokenise what ``data`` names. Held-out prompts count when all of them have a response.

    Raises UserError for whatever is wrong with the data.
    """
    if acts_in_environments(config):
        return demonstration_samples(config)
    found = load_source(config.data)
    if isinstance(found, SampleSplits):
        return found
    processor = get_processor(config.model)
    train = _examples(config, processor, found.train, config.data.train_max_samples)
    complete = bool(found.val) and all(record.response is not None for record in found.val)
    val = _examples(config, processor, found.val, config.data.val_max_samples) if complete else None
    return SampleSplits(train=train, val=val)


def _examples(
    config: RunConfig, processor: TextProcessor, records: list[PromptRecord], limit: int | None
) -> TextExamples:
    data = config.data
    tokenized = tokenize_examples(
        records, processor, data.max_prompt_length, data.max_response_length, data.filter_overlong_prompts,
        data.truncation, data.template, limit,
    )  # fmt: skip
    return TextExamples(tokenized, processor.pad_token_id)
