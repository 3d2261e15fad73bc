"""The hardware acceptance: does training on a platform give the reward curve that a trusted platform gives?

`plugrl accept` is its command. :mod:`~plugrl.acceptance.curves` has the statistics, :mod:`~plugrl.acceptance.rules` the
rules that use them, :mod:`~plugrl.acceptance.reference` the curves that are trusted.
"""

from __future__ import annotations
