"""A sender and its receivers in threads of one process: the sockets and the memory are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.runtime.sync import Received, SyncReport, WeightReceiver, WeightRoute, WeightSender, WeightSource, specs_of
from plugrl.testing.workers import same_bits

State = Mapping[str, torch.Tensor]


class Model:
    """What a receiver loads into: keeps what lasts, copies the rest."""

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}
        self.version = -1
        self.fails = False

    def load(self, received: Received, version: int) -> None:
        if self.fails:
            raise MemoryError("no room")
        self.state = {name: t if received.lasting else t.clone() for name, t in received.tensors}
        self.version = version

    def has(self, state: State) -> bool:
        return self.state.keys() == state.keys() and all(same_bits(self.state[name], state[name]) for name in state)


class Wire:
    """A route with both ends."""

    def __init__(self, directory: str, kind: str, receivers: int, timeout_s: float, options: dict[str, Any]) -> None:
        config = WeightSyncConfig.model_validate({"type": kind, **options})
        self.route = WeightRoute(
            name="wire", directory=directory, receivers=receivers, kind=kind, bucket_bytes=4096, timeout_s=timeout_s,
            options=config,
        )  # fmt: skip
        self.sender = WeightSender(self.route)
        self.receivers = [WeightReceiver(self.route, index) for index in range(receivers)]
        self.models = [Model() for _ in range(receivers)]
        self._pool = ThreadPoolExecutor(receivers + 1)

    def transfer(
        self, state: State, version: int, frozen: frozenset[str] = frozenset(), broken_after: int = -1
    ) -> tuple[SyncReport | BaseException, list[BaseException | None]]:
        """Do a transfer and return the report (or the error) of the sender and the errors of the receivers."""

        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for count, item in enumerate(state.items()):
                if count == broken_after:
                    raise ValueError("the stream broke")
                yield item

        source = WeightSource(tensors=stream(), frozen=frozen, specs=specs_of(state.items()))
        waiting = [
            self._pool.submit(receiver.apply, version, model.load)
            for receiver, model in zip(self.receivers, self.models, strict=True)
        ]
        sent = self._pool.submit(self.sender.send, source, version)
        errors = [future.exception(30) for future in waiting]
        failure = sent.exception(30)
        return (sent.result() if failure is None else failure), errors

    def deliver(self, state: State, version: int, frozen: frozenset[str] = frozenset()) -> SyncReport:
        """Do a transfer that must succeed and arrive bit for bit."""
        report, errors = self.transfer(state, version, frozen)
        assert isinstance(report, SyncReport) and errors == [None] * len(errors), (report, errors)
        assert [model.version for model in self.models] == [version] * len(self.models)
        for index, model in enumerate(self.models):
            assert model.has(state), f"receiver {index} has other weights than were sent"
        return report

    def replace_receiver(self, index: int) -> None:
        """Launch a receiver again, which knows nothing of what was sent before."""
        self.receivers[index].close()
        self.receivers[index], self.models[index] = WeightReceiver(self.route, index), Model()

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()
        self.sender.close()
        self._pool.shutdown()


@pytest.fixture
def wire(tmp_path: Any) -> Iterator[Callable[..., Wire]]:
    """Return a function that makes wires; all are closed at the end."""
    made: list[Wire] = []

    def make(kind: str, receivers: int = 2, timeout_s: float = 20.0, **options: Any) -> Wire:
        made.append(Wire(str(tmp_path / str(len(made))), kind, receivers, timeout_s, options))
        return made[-1]

    yield make
    for item in made:
        item.close()


@pytest.fixture
def random_state() -> Callable[[int], dict[str, torch.Tensor]]:
    """Return a function that makes a state of all kinds of tensors from a seed."""

    def make(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = {
            "large": ((3, 5_000), torch.float32), "half": ((100, 31), torch.bfloat16), "flags": ((13,), torch.bool),
            "bytes": ((5, 3), torch.int8), "long": ((129,), torch.int64), "scalar": ((), torch.float64),
            "empty": ((0, 4), torch.float32), "complex": ((7,), torch.complex64),
            **{f"small.{i}": ((7, i + 1), torch.float32) for i in range(9)},
        }  # fmt: skip
        return {
            name: torch.randint(-100, 100, shape, generator=generator).to(dtype)
            for name, (shape, dtype) in shapes.items()
        }

    return make
