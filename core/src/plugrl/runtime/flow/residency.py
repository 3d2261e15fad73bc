"""What lies on the devices: components come when they are to work, and leave when somebody else needs their room.

Memory is accounted, not measured while it is used: each component takes a known number of MiB on each of its devices,
and a device has a budget. A component stays where it is after its work; it is off-loaded when another one that comes to
the device does not fit beside it, or when it is told to leave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from plugrl.errors import ConfigError
from plugrl.runtime import trace
from plugrl.runtime.flow.locks import DeviceLocks

State = Literal["away", "weights", "all"]
"""How much of a component is on its devices: nothing, what it computes with, or also what only training needs."""

_ORDER: dict[State, int] = {"away": 0, "weights": 1, "all": 2}


@dataclass
class Resident:
    """A component with its devices.

    need_mib: memory on each of its devices; ``weights_mib`` that of the weights alone, all of it unless given.
    move: brings the component into a state and returns when that is done. moves: the states it was brought into.
    """

    name: str
    devices: tuple[int, ...]
    need_mib: int
    move: Callable[[State], None]
    weights_mib: int | None = None
    state: State = "all"
    used_at: int = 0
    moves: list[State] = field(default_factory=list)

    def takes(self, state: State) -> int:
        """Return the MiB that the component takes in a state."""
        if state == "away":
            return 0
        return self.need_mib if state == "all" or self.weights_mib is None else self.weights_mib


class DeviceMemoryError(ConfigError):
    """What is to work on a device at once does not fit there; the message names device, residents and request."""


class Residency:
    """Holds devices for components and moves the components.

    Args:
        residents: every component of a run.
        budget_mib: memory of a device, by device; devices without a budget hold everything.
        locks: of the devices.
        timeout: seconds to wait for devices, None for ever.
    """

    def __init__(
        self,
        residents: Sequence[Resident] = (),
        budget_mib: Mapping[int, int] | None = None,
        locks: DeviceLocks | None = None,
        timeout: float | None = None,
    ) -> None:
        self._residents = {resident.name: resident for resident in residents}
        self._budget = dict(budget_mib or {})
        self._locks = locks or DeviceLocks()
        self._timeout = timeout
        self._moving = threading.RLock()
        self._clock = 0

    @property
    def residents(self) -> Mapping[str, Resident]:
        """The components by name."""
        return self._residents

    @contextmanager
    def using(self, *names: str, weights_of: Collection[str] = (), owner: Hashable | None = None) -> Iterator[None]:
        """Hold the devices of these components, all of them there, while the block runs.

        Of the components in ``weights_of`` the weights are enough. Names without an entry are passed over; ``owner`` is
        this thread unless given. Raises DeviceMemoryError when they do not fit together.
        """
        known = [name for name in names if name in self._residents]
        devices = sorted({device for name in known for device in self._residents[name].devices})
        holder = owner if owner is not None else f"{threading.current_thread().name} for {', '.join(known)}"
        with self._locks.holding(holder, devices, self._timeout):
            with self._moving:
                for name in known:
                    self._bring(name, "weights" if name in weights_of else "all", known, weights_of)
            yield

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Hold all devices, so that no component works, and move nothing."""
        devices = sorted({device for resident in self._residents.values() for device in resident.devices})
        with self._locks.holding(f"{threading.current_thread().name} for all", devices, self._timeout):
            yield

    def renew(self, resident: Resident, budget_mib: int | None) -> None:
        """Take up a component that stands on other devices than before; what does not fit beside it leaves."""
        with self._moving:
            self._residents[resident.name] = resident
            if budget_mib is not None:
                self._budget |= {device: budget_mib for device in resident.devices}
        self.settle()

    def load(self, name: str) -> None:
        """Bring a component to its devices."""
        with self._moving:
            self._bring(name, "all", [name], ())

    def unload(self, name: str) -> None:
        """Take a component from its devices."""
        with self._moving:
            self._move(self._residents[name], "away")

    def settle(self) -> list[str]:
        """Off-load what does not fit beside the others as they stand, the largest first; returns their names."""
        gone = []
        with self._moving:
            for device, budget in sorted(self._budget.items()):
                while sum(one.takes(one.state) for one in self._on(device)) > budget:
                    largest = max(self._on(device), key=lambda one: (one.takes(one.state), one.name))
                    self._move(largest, "away")
                    gone.append(largest.name)
        return gone

    def check(self) -> None:
        """Raise DeviceMemoryError when a component does not even fit alone."""
        for resident in self._residents.values():
            self._make_room(resident, "all", [resident.name], (), only_check=True)

    # ----------------------------------------------------------------- details
    def _bring(self, name: str, state: State, keep: Sequence[str], weights_of: Collection[str]) -> None:
        resident = self._residents[name]
        self._clock += 1
        resident.used_at = self._clock
        if _ORDER[resident.state] < _ORDER[state]:
            self._make_room(resident, state, keep, weights_of)
            self._move(resident, state)

    def _move(self, resident: Resident, state: State) -> None:
        if resident.state == state:
            return
        with trace.span("offload" if _ORDER[state] < _ORDER[resident.state] else "onload", component=resident.name):
            resident.move(state)
        resident.state = state
        resident.moves.append(state)

    def _make_room(
        self,
        wanted: Resident,
        state: State,
        keep: Sequence[str],
        weights_of: Collection[str],
        *,
        only_check: bool = False,
    ) -> None:
        """Off-load what has to leave for a component, what was used longest ago first; shrink what may shrink."""
        for device in wanted.devices:
            budget = self._budget.get(device)
            if budget is None:
                continue
            others = [one for one in self._on(device) if one is not wanted and one.state != "away"]
            if only_check:
                others = []
            leaving = sorted((one for one in others if one.name not in keep), key=lambda one: one.used_at)
            shrinking = [one for one in others if one.name in keep and one.name in weights_of]
            steps: list[tuple[Resident, State]] = [(one, "away") for one in leaving]
            steps += [(one, "weights") for one in shrinking]
            while wanted.takes(state) + sum(one.takes(one.state) for one in others) > budget:
                if not steps:
                    self._refuse(device, wanted, state, [one for one in others if one.state != "away"])
                self._move(*steps.pop(0))

    def _refuse(self, device: int, wanted: Resident, state: State, staying: Sequence[Resident]) -> None:
        held = ", ".join(f"{one.name} {one.takes(one.state)} MiB" for one in staying) or "nothing else"
        raise DeviceMemoryError(
            f"cluster.device_memory_mib: device {device} has {self._budget[device]} MiB, and {wanted.name} needs "
            f"{wanted.takes(state)} MiB there beside {held}. Give {wanted.name} other devices or more of them "
            "(cluster.component_placement), or correct flow.memory_mib."
        )

    def _on(self, device: int) -> list[Resident]:
        return [one for one in self._residents.values() if device in one.devices]
