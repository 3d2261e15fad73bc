"""The table that a run ends with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from plugrl.runners.summary import print_summary
from plugrl.runners.validation import Share, Validation


def validation(step: int, right: int, formatted: int | None) -> Validation:
    share = None if formatted is None else Share(formatted, 100)
    return Validation(step=step, metrics={}, accuracy=Share(right, 100), formatted=share, seconds=1.0)


@pytest.mark.parametrize(
    ("formatted", "shown"), [((None, None), False), ((100, 100), False), ((4, 100), True), ((100, 90), True)]
)
def test_the_format_is_told_where_it_was_not_always_kept(
    formatted: tuple[int | None, int | None], shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = validation(0, 3, formatted[0]), validation(60, 5, formatted[1])
    print_summary([first, validation(30, 4, 50), last], seconds=60, steps=60, tokens=600, report=None)
    table = capsys.readouterr().out
    assert "held-out accuracy before" in table and "3.0%" in table and "5.0%" in table
    assert ("answers in the format" in table) == shown
    assert "1 min" in table and "tokens a second" in table
