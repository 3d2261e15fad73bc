"""Operators that the device must compute as the host does. Those that make, view, resize and write above all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Case:
    """A call and the arguments to make it with; with ``in_place`` these are compared after it too."""

    call: Callable[..., Any]
    arguments: Callable[[], list[Any]]
    in_place: bool = False


def _matrix(rows: int = 3, columns: int = 4) -> torch.Tensor:
    return torch.randn(rows, columns)


def _gradients(call: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return the output and the gradients of all floating arguments, modules included."""

    def run(*arguments: Any) -> list[torch.Tensor]:
        leaves = [item for item in arguments if isinstance(item, torch.Tensor) and item.is_floating_point()]
        for leaf in leaves:
            leaf.requires_grad_(True)
        weights = [p for item in arguments if isinstance(item, torch.nn.Module) for p in item.parameters()]
        output = call(*arguments)
        (output * torch.linspace(0, 1, output.numel(), device=output.device).view(output.shape)).sum().backward()
        return [output.detach(), *(item.grad for item in [*leaves, *weights] if item.grad is not None)]

    return run


def _written_view(tensor: torch.Tensor) -> torch.Tensor:
    tensor.t()[1].mul_(3)
    tensor[0, 1:3] = 7
    tensor.view(-1)[::2].add_(1)
    return tensor


def _resized_result(tensor: torch.Tensor) -> list[torch.Tensor]:
    grown, kept = torch.empty(0, device=tensor.device), torch.empty(20, device=tensor.device)[:0]
    torch.mul(tensor, 2, out=grown)
    torch.mul(tensor, 2, out=kept)
    return [grown, kept]


def _from_a_storage(tensor: torch.Tensor) -> list[torch.Tensor]:
    storage = tensor.untyped_storage()
    part = torch.empty(0, device=tensor.device).set_(storage, 2, (2, 3), (4, 1))
    whole = torch.empty(0, device=tensor.device).set_(storage)
    return [part, whole, torch.empty(3, device=tensor.device).set_(), torch.ones(1, device=tensor.device).set_(part)]


def _steps(optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Callable[..., Any]:
    def run(model: torch.nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        parameters = list(model.parameters())
        rule = optimizer(parameters)
        for _ in range(3):
            rule.zero_grad()
            model(inputs).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            rule.step()
        return [parameter.detach() for parameter in parameters]

    return run


def _packed(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    packed = torch.nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([5, 3]), batch_first=True)
    return torch.nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)[0]


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def _attention(query: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, query, query, is_causal=True)


def _recurrent(kind: type[torch.nn.Module]) -> Callable[[], list[Any]]:
    return lambda: [kind(4, 6, num_layers=2, batch_first=True, bidirectional=True), torch.randn(2, 5, 4)]


_LABELS = torch.tensor([0, 2, 1])
CASES: dict[str, Case] = {
    # made, moved, seen in another shape
    "factories": Case(lambda x: [x.new_zeros(2), torch.full_like(x, 3), x.new_empty(0)], lambda: [_matrix()]),
    "ranges": Case(
        lambda x: [torch.arange(5, device=x.device), torch.eye(3, device=x.device), torch.linspace(0, 1, 3).to(x)],
        lambda: [_matrix()],
    ),
    "written views": Case(_written_view, lambda: [_matrix()], in_place=True),
    "views": Case(
        lambda x: [x.unfold(1, 2, 1), x.expand(2, 3, 4), x.T, x.diagonal(), *x.split(2), *x.unbind(1)],
        lambda: [_matrix()],
    ),
    "complex views": Case(
        lambda x: [torch.view_as_real(x), x.conj().resolve_conj(), x.imag, x.conj() @ x.T], lambda: [_matrix() * 1j]
    ),
    "channels last": Case(
        lambda x: x.to(memory_format=torch.channels_last).mul(2), lambda: [torch.randn(2, 3, 4, 4)]
    ),
    "casts": Case(lambda x: [x.to(torch.bfloat16), x.double(), x.int(), x.bool(), x.half()], lambda: [_matrix()]),
    "other bits": Case(lambda x: x.view(torch.int32), lambda: [_matrix()]),
    "nothing": Case(lambda x: [x[:0] + 1, x[:0].sum(), torch.cat([x[:0], x])], lambda: [_matrix()]),
    "numbers": Case(lambda x: [x.sum().item(), x.tolist(), bool((x == x).all())], lambda: [_matrix()]),
    # written results
    "resized results": Case(_resized_result, lambda: [_matrix()]),
    "storages": Case(_from_a_storage, lambda: [_matrix()]),
    "in place": Case(lambda x, y: x.add_(y).clamp_(-1, 1).t_(), lambda: [_matrix(), _matrix()], in_place=True),
    "copies": Case(lambda x, y: x.t().copy_(y.t()), lambda: [_matrix(), _matrix()], in_place=True),
    "lists in place": Case(
        lambda x, y: torch._foreach_lerp_([x, y], [y.clone(), x.clone()], 0.3), lambda: [_matrix(), _matrix()], True
    ),
    "lists": Case(lambda x: list(torch._foreach_norm([x, x * 2])), lambda: [_matrix()]),
    # indices
    "indices": Case(lambda x, i: [x[i], x[:, i], x.gather(1, i[:, None])], lambda: [_matrix(), _LABELS]),
    "indices of the host": Case(lambda x: [x[torch.tensor([0, 2])], x[[True, False, True]]], lambda: [_matrix()]),
    "written indices": Case(
        lambda x, i: x.index_put_((i,), torch.ones(3, 4, device=x.device), accumulate=True),
        lambda: [_matrix(), torch.tensor([0, 0, 2])],
        in_place=True,
    ),
    "masks": Case(lambda x: [x.masked_fill(x > 0, 0), x[x > 0], x.where(x > 0, 1.0), x.nonzero()], lambda: [_matrix()]),
    "sorted": Case(lambda x: [*x.sort(dim=1), *x.topk(2), x.argmax(1), *x.max(0)], lambda: [_matrix()]),
    "scalars of the host": Case(
        lambda x: [x + torch.tensor(2.0), x * 3, 2 - x, x / torch.tensor(2)], lambda: [_matrix()]
    ),
    # layers and their gradients
    "linear": Case(_gradients(lambda m, x: m(x)), lambda: [_model(), _matrix()]),
    "convolution": Case(
        _gradients(lambda m, x: m(x)),
        lambda: [torch.nn.Conv2d(2, 4, 3, 2, 1, groups=2), torch.randn(2, 2, 7, 7)],
    ),
    "transposed convolution": Case(
        _gradients(lambda m, x: m(x)), lambda: [torch.nn.ConvTranspose1d(4, 6, 3, 2, groups=2), torch.randn(2, 4, 5)]
    ),
    "attention": Case(_gradients(_attention), lambda: [torch.randn(2, 2, 5, 4)]),
    "GRU": Case(_gradients(lambda m, x: m(x)[0]), _recurrent(torch.nn.GRU)),
    "LSTM": Case(_gradients(lambda m, x: m(x)[0]), _recurrent(torch.nn.LSTM)),
    "packed sequences": Case(_gradients(_packed), _recurrent(torch.nn.LSTM)),
    "embedding": Case(
        _gradients(lambda m, i: m(i)), lambda: [torch.nn.Embedding(7, 3, padding_idx=0), torch.tensor([[1, 0], [6, 1]])]
    ),
    "cross entropy": Case(_gradients(lambda x, y: F.cross_entropy(x, y)[None]), lambda: [_matrix(), _LABELS]),
    "batch norm": Case(_gradients(lambda m, x: m(x)), lambda: [torch.nn.BatchNorm1d(4), _matrix()]),
    "linear algebra": Case(lambda x: [torch.linalg.inv(x), torch.linalg.qr(x)[1], x.det()], lambda: [_matrix(4, 4)]),
    "spectra": Case(lambda x: [torch.fft.rfft(x), torch.einsum("ij,kj->ik", x, x)], lambda: [_matrix()]),
    "AdamW": Case(_steps(lambda p: torch.optim.AdamW(p, foreach=False)), lambda: [_model(), _matrix()]),
    "AdamW of lists": Case(_steps(lambda p: torch.optim.AdamW(p, foreach=True)), lambda: [_model(), _matrix()]),
    "fused AdamW": Case(_steps(lambda p: torch.optim.AdamW(p, fused=True)), lambda: [_model(), _matrix()]),
    "fused SGD": Case(_steps(lambda p: torch.optim.SGD(p, momentum=0.9, fused=True)), lambda: [_model(), _matrix()]),
}
