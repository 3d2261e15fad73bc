"""DAPO's soft punishment of long responses, equation 13 of arXiv:2503.14476."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from plugrl.algorithms import overlong_penalty


def test_the_penalty_grows_over_the_buffer_and_nowhere_else():
    lengths = torch.tensor([1, 60, 61, 70, 80])
    got = overlong_penalty(lengths, 80, buffer=20, factor=0.5)
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, -0.025, -0.25, -0.5]))


def test_a_buffer_as_long_as_the_response_starts_with_the_first_token():
    got = overlong_penalty(torch.tensor([0, 1, 4]), 4, buffer=4)
    torch.testing.assert_close(got, torch.tensor([0.0, -0.25, -1.0]))
