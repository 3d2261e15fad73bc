"""`data:`: the prompts, from files, from a generator or from a registered data set."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plugrl.config.schema.base import Names, Section


class DataConfig(Section):
    """Where the prompts come from and how they are cut into batches."""

    source: str = "files"
    """`files`, `arithmetic`, or the name of a data set that a plugin registers."""

    source_options: dict[str, Any] = {}
    """Options of the source."""

    train_files: Names = ()
    """JSONL or parquet files of the source `files`; one name or a list."""

    val_files: Names = ()
    """Held-out files; one name or a list."""

    prompt_key: str = "prompt"
    """Column that holds the prompt: a text or a list of chat messages."""

    template: str | None = None
    """Text with `{prompt}` around a plain prompt; null leaves the prompt as it is."""

    train_batch_size: int = Field(1024, ge=1)
    """Prompts in one step."""

    val_batch_size: int | None = Field(None, ge=1)
    """Prompts in one validation batch; null takes all at once."""

    train_max_samples: int | None = Field(None, ge=1)
    """Use only so many training prompts, of those that are not dropped."""

    val_max_samples: int | None = Field(None, ge=1)
    """Use only so many held-out prompts, of those that are not dropped."""

    max_prompt_length: int = Field(512, ge=1)
    """Tokens of the longest prompt."""

    max_response_length: int = Field(512, ge=1)
    """Tokens of the longest response."""

    filter_overlong_prompts: bool = False
    """Drop prompts that are longer than `max_prompt_length`."""

    truncation: Literal["error", "left", "right"] = "error"
    """What to do with a prompt that is too long and was not dropped."""

    shuffle: bool = True
    """Draw the training prompts in a new random order each epoch."""

    seed: int | None = None
    """Seed of that order; null takes `trainer.seed`."""
