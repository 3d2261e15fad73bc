"""Scores batches of responses with the configured reward, and says so when no answer can be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from plugrl.errors import ConfigError, UserError
from plugrl.rewards.base import RewardFunction, RewardResult
from plugrl.rewards.registry import get_reward
from plugrl.rewards.time_limit import time_limit

logger = logging.getLogger(__name__)


class RewardSettings(Protocol):
    """What the manager reads of the configuration's section ``reward``."""

    @property
    def name(self) -> str | None:
        """A registered reward."""

    @property
    def function(self) -> str | None:
        """An importable ``"module:function"``, instead of ``name``."""

    @property
    def reward_kwargs(self) -> Mapping[str, Any]:
        """Options of the reward."""

    @property
    def timeout_s(self) -> float:
        """Seconds that a batch may take."""

    @property
    def unparsed_warning_steps(self) -> int:
        """After so many first batches without an answer a warning is given; 0 switches it off."""


class RewardManager:
    """Scores responses.

    Args:
        config: the section ``reward`` of the configuration.

    Raises:
        UserError: (a ValueError) unknown reward, a function that cannot be imported, or an option it does not take.
    """

    def __init__(self, config: RewardSettings) -> None:
        name = config.function or config.name
        if name is None:
            raise ConfigError("reward.name: name a reward, or give reward.function as module:function.")
        self.name = name
        self._options = dict(config.reward_kwargs)
        self._function: RewardFunction = get_reward(self.name, **self._options)
        self._timeout = config.timeout_s
        self._watch = _UnparsedWatch(
            self.name, str(self._options.get("method", "default")), config.unparsed_warning_steps
        )

    def score_batch(
        self,
        texts: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        note: bool = True,
    ) -> list[RewardResult]:
        """Score responses one by one, in order.

        A plain score is also given as ``acc`` in the result's info, as verl does. ``note=False`` leaves the responses
        out of the warning about answers that cannot be read: who scores a batch in portions calls :meth:`note`.

        Raises:
            UserError: (a ValueError) lengths differ, or the function fails, returns no score or takes too long; the
                row is named.
        """
        extras = extra_infos if extra_infos is not None else [{}] * len(texts)
        if not len(texts) == len(ground_truths) == len(extras):
            raise UserError(f"{len(texts)} responses, {len(ground_truths)} ground truths, {len(extras)} extra infos.")
        results: list[RewardResult] = []
        with time_limit(self._timeout, lambda: self._too_slow(texts, len(results))):
            for row in zip(texts, ground_truths, extras, strict=True):
                results.append(self._score(*row))
        if note:
            self.note(texts, results)
        return results

    def note(self, texts: Sequence[str], results: Sequence[RewardResult]) -> None:
        """Count a batch of scored responses for the warning that no answer can be read."""
        self._watch.see(texts, results)

    def _score(self, text: str, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> RewardResult:
        try:
            raw = self._function(text, ground_truth, extra_info or {})
        except UserError:
            raise
        except Exception as error:  # the border to the user's code
            raise UserError(
                f"Reward {self.name!r} failed on the response {_short(text)} with the ground truth "
                f"{_short(ground_truth)}: {type(error).__name__}: {error}"
            ) from error
        result = RewardResult.of(raw, self.name)
        return result if "acc" in result.info else RewardResult(result.score, {**result.info, "acc": result.score})

    def _too_slow(self, texts: Sequence[str], done: int) -> str:
        at = f"judging the response {_short(texts[done])}" if done < len(texts) else "done"
        return (
            f"Reward {self.name!r} took more than {self._timeout:g} s (reward.timeout_s) for {len(texts)} responses: "
            f"{done} were judged, it was {at}."
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


class _UnparsedWatch:
    """Warns once if no answer could be read in any of the first batches: else the reward silently stays 0."""

    def __init__(self, name: str, method: str, steps: int) -> None:
        self._title = f'"{name}" (method {method})'
        self._steps = steps
        self._seen = 0
        self._rows = 0
        self._done = steps <= 0

    def see(self, texts: Sequence[str], results: Sequence[RewardResult]) -> None:
        """Take note of one batch."""
        judged = [result.info["parsed"] for result in results if "parsed" in result.info]
        if self._done or not judged:
            return
        if any(judged):
            self._done = True
            return
        self._seen += 1
        self._rows += len(judged)
        if self._seen < self._steps:
            return
        self._done = True
        logger.warning(
            "Reward %s could read an answer in 0 of %d responses (0 %%) of the first %d batches. A sample: %r",
            self._title,
            self._rows,
            self._seen,
            texts[0][-200:],
        )
