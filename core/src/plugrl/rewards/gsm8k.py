"""The final number of a grade-school word problem, as GSM8K writes it: after ``####``.

Three methods of reading it:

- ``recommended``: the last ``####`` with a number after any white space; minus and ``$`` in either order. Commas and
  ``$`` are dropped, so is a final dot, and numbers are compared by value, the ground truth read alike.
- ``strict``: as verl does: the last ``#### `` (one space) with minus, digits, dots and commas; compared as text.
- ``flexible``: as verl does: the last run of digits, dots and commas anywhere (a lone dot only if there is no other);
  compared as text, commas kept.

The verl-compatible methods look at the last 300 characters only, the recommended one at all; ``clip`` changes that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from plugrl.errors import DataError, UserError, one_of

METHODS = ("recommended", "strict", "flexible")
"""Known methods."""

COMPATIBLE_CLIP = 300
"""Characters at the end of a response that the verl-compatible methods look at."""

_MARKED = re.compile(r"####\s*((?:-\s*\$?|\$\s*-?)?\s*(?:[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+))")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_ANYWHERE = re.compile(r"-?[0-9.,]+")

Clip = int | Literal["auto"] | None


def extract(text: str, method: str = "recommended", *, clip: Clip = "auto") -> str | None:
    """Return the answer that ``text`` gives, as text, or None where there is none.

    Args:
        text: the response, without special tokens.
        method: see the module.
        clip: look only at so many last characters; None at all; ``auto``: 300 for the verl-compatible methods.

    Raises:
        UserError: (a ValueError) an unknown method.
    """
    if method not in METHODS:
        raise UserError(f'gsm8k has no method "{method}". Known: {one_of(METHODS)}.')
    limit = (None if method == "recommended" else COMPATIBLE_CLIP) if clip == "auto" else clip
    if limit is not None:
        text = text[-limit:] if limit > 0 else ""
    if method == "flexible":
        runs = _ANYWHERE.findall(text)
        # As verl has it: where there is nothing but lone dots, one of them is the answer.
        return next((run for run in reversed(runs) if run != "."), runs[0] if runs else None)
    found = (_MARKED if method == "recommended" else _STRICT).findall(text)
    if not found:
        return None
    return _normalise(found[-1]) if method == "recommended" else found[-1].replace(",", "")


def reward(
    text: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    method: str = "recommended",
    format_score: float = 0.0,
    score: float = 1.0,
    clip: Clip = "auto",
) -> dict[str, Any]:
    """Judge one response; registered as the reward ``gsm8k``.

    Returns:
        ``score``: the given ``score`` if the answer is right, ``format_score`` if one was read but is wrong, else 0;
        ``acc`` and ``parsed``: 1.0 or 0.0; ``pred``: the answer as read, or "".

    Raises:
        UserError: (a ValueError) an unknown method.
    """
    answer = extract(text, method, clip=clip)
    right = answer is not None and _equal(answer, str(ground_truth), by_value=method == "recommended")
    return {
        "score": score if right else (0.0 if answer is None else format_score),
        "acc": float(right),
        "parsed": float(answer is not None),
        "pred": answer or "",
    }


def score(
    text: str,
    answer: Any,
    method: str = "recommended",
    format_score: float = 0.0,
    score: float = 1.0,
    clip: Clip = "auto",
) -> float:
    """Return the score alone of :func:`reward`, for the response ``text`` and the right ``answer``."""
    judged = reward(text, answer, method=method, format_score=format_score, score=score, clip=clip)
    return float(judged["score"])


def label(answer: str) -> str:
    """Return the ground truth in an answer of the data set: its first ``#### number``, commas removed.

    Raises:
        DataError: no marker with a number in ``answer``.
    """
    found = _STRICT.search(answer)
    if found is None:
        raise DataError(f'No "#### number" in the answer {answer[-60:]!r}.')
    return found.group(1).replace(",", "")


def _normalise(answer: str) -> str:
    return re.sub(r"[\s$,]", "", answer).removesuffix(".")


def _equal(answer: str, truth: str, *, by_value: bool) -> bool:
    if not by_value:
        return answer == truth
    try:
        return Decimal(_normalise(answer)) == Decimal(_normalise(truth))
    except InvalidOperation:
        return _normalise(answer) == _normalise(truth)
