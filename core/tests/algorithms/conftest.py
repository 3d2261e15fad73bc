"""The batches that the reference values were measured on, named as in the reference (section 11)."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Use one thread: these tensors are tiny, and the machine is shared."""
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


def outcome_batch(ids, rewards, lengths, width):
    """A batch whose rows carry their reward on the last valid token."""
    import torch

    from plugrl.algorithms import place_rewards

    mask = torch.tensor([[1.0] * length + [0.0] * (width - length) for length in lengths])
    return SimpleNamespace(ids=ids, rewards=place_rewards(torch.tensor(rewards), mask), mask=mask)


@pytest.fixture(scope="session")
def batches() -> dict[str, SimpleNamespace]:
    """Advantage batches A, B and E: ids, token rewards and mask (E: values too)."""
    torch = pytest.importorskip("torch")
    b_ids = ["q2", "q1", "q2", "q3", "q1", "q2", "q3", "q1"]
    return {
        "A": outcome_batch(list("aaaabbc"), [1, 0, 0, 1, 1, 1, 0.7], [3, 4, 1, 2, 4, 2, 3], 4),
        "B": outcome_batch(b_ids, [0.2, 1, -0.5, 0.9, 0, 1.3, 0.9, 1], [2, 5, 3, 1, 4, 5, 2, 3], 5),
        "E": SimpleNamespace(
            ids=list("xxyy"),
            mask=torch.tensor([[1.0, 1, 0, 1, 1], [1, 0, 0, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
            rewards=torch.tensor([[0, 0.1, 0, 0, 1], [0, 0, 0, 0.5, 0], [0.2, 0, 0, 0, 0], [0, 0, -0.2, 0, 0.6]]),
            values=torch.tensor(
                [[0.1, 0.2, 9, 0.3, 0.4], [0.5, -7, 3, 0.2, 1], [0, 0.1, 0.2, 5, 5], [0.3, 0.1, 0, -0.1, 0.2]]
            ),
        ),
    }


@pytest.fixture(scope="session")
def loss_batches() -> dict[str, SimpleNamespace]:
    """Policy loss batches P and Q, Q with new = old, and one whose log-ratios overflow (far)."""
    torch = pytest.importorskip("torch")
    q_old = torch.tensor([[-1, -0.5, -2], [-0.7, -1.2, -0.9]])
    q = SimpleNamespace(
        old=q_old,
        new=torch.tensor([[-0.83, -0.9, -0.7], [-0.4, -1.3, -1.9]]),
        advantages=torch.tensor([[1.0, 1, 1], [-1, -1, -1]]),
        mask=torch.tensor([[1, 1, 1], [1, 1, 0]]),
        ref=torch.tensor([[-1.1, -0.4, -1.8], [-0.6, -1, -1]]),
        entropy=torch.tensor([[0.9, 0.8, 1.2], [0.7, 1, 0.5]]),
        clip_low=0.2,
        clip_high=0.2,
    )
    p = SimpleNamespace(
        old=torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.2]]).log(),
        new=torch.tensor([[0.5, 0.7, 0.3, 0.7, 0.3, 0.05, 1.0]]).log(),
        advantages=torch.tensor([[1.0, 1, 1, -1, -1, -1, -1]]),
        mask=torch.ones(1, 7),
        clip_low=0.2,
        clip_high=0.28,
    )
    far = SimpleNamespace(
        old=torch.tensor([[-30, -0.5]]),
        new=torch.tensor([[-1.0, -29]]),
        advantages=torch.tensor([[1.0, -1]]),
        mask=torch.ones(1, 2),
        clip_low=0.2,
        clip_high=0.28,
    )
    return {"P": p, "Q": q, "Q same": SimpleNamespace(**{**vars(q), "new": q_old}), "far": far}
