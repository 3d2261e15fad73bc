"""Generated two-operand arithmetic: a task small enough to be learnt from nothing on a laptop."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

from plugrl.data.records import PromptRecord, Splits
from plugrl.data.registry import DataSettings
from plugrl.errors import ConfigError, one_of

OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
"""Known operators."""


def arithmetic(
    config: DataSettings | None = None,
    *,
    operators: str = "+-",
    min: int = 0,
    max: int = 99,
    num_train: int = 4096,
    num_val: int = 512,
    seed: int = 0,
) -> Splits:
    """Return distinct problems such as ``12+34=`` with the answer ``46``: the data set ``arithmetic``.

    Args:
        operators: one or several of ``+ - *``.
        min: smallest operand.
        max: largest operand.
        num_train: training problems, drawn without repetition in random order.
        num_val: held-out problems, none of which is among the training problems.
        seed: of the draw; the same options give the same problems.

    Raises:
        ConfigError: an unknown operator, an empty range, or more problems than there are.
    """
    unknown = sorted(set(operators) - OPERATORS.keys())
    if unknown or not operators:
        raise ConfigError(f"data.source_options.operators: {operators!r} is not made of {one_of(OPERATORS)}.")
    if max < min:
        raise ConfigError(f"data.source_options.max: {max} is less than min, {min}.")
    distinct, width = sorted(set(operators)), max - min + 1
    available = len(distinct) * width * width
    if num_train + num_val > available:
        raise ConfigError(
            f"data.source_options.num_train: {num_train} + {num_val} (num_val) problems asked for; "
            f"operators {operators!r} on {min} to {max} have {available}."
        )
    numbers = random.Random(f"arithmetic-{seed}").sample(range(available), num_train + num_val)
    records = [_record(number, distinct, width, min) for number in numbers]
    return Splits(train=records[num_val:], val=records[:num_val])


def _record(number: int, operators: list[str], width: int, low: int) -> PromptRecord:
    """Return the problem with this number: operator first, then left, then right operand."""
    symbol = operators[number // (width * width)]
    left, right = low + number // width % width, low + number % width
    answer = str(OPERATORS[symbol](left, right))
    return PromptRecord(
        prompt=f"{left}{symbol}{right}=",
        response=answer,
        ground_truth=answer,
        data_source="arithmetic",
        extra_info={"left": left, "operator": symbol, "right": right},
    )
