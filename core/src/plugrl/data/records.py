"""One prompt with what is known about its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""A chat message: ``role`` and ``content``."""


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """A row of a data set. Either ``messages`` (chat) or ``prompt`` (plain text) is given.

    Attributes:
        messages: the conversation so far; the model's chat template is applied.
        prompt: text, taken as it is.
        response: what the model should say, for supervised training; None where that is not known.
        ground_truth: what the reward compares with.
        data_source: name of the data set, by which validation results are reported.
        extra_info: anything else; it is handed to the reward.
    """

    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    response: str | None = None
    ground_truth: Any = None
    data_source: str = "unknown"
    extra_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The prompt as text: the plain one, or the last message."""
        return self.prompt if self.prompt is not None else str((self.messages or ({"content": ""},))[-1]["content"])


@dataclass(frozen=True)
class Splits:
    """A data set: training and held-out records; either may be empty."""

    train: list[PromptRecord]
    val: list[PromptRecord]
