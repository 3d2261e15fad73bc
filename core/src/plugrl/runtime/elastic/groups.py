"""Scaling of worker groups: a second generation starts under the group's name and takes its place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from plugrl.errors import PlugRLError, one_line
from plugrl.runtime.deadline import Deadline
from plugrl.runtime.elastic.steps import Fault, ScalePlan, ScaleReport, no_fault, run_steps
from plugrl.runtime.elastic.transfer import Preparation, Room, move_state
from plugrl.runtime.group import WorkerGroup

logger = logging.getLogger(__name__)

Launch = Callable[[WorkerGroup], WorkerGroup]
"""Starts the next generation of a group, see :meth:`plugrl.runtime.WorkerGroup.successor`, and returns at once."""


class GroupScaling(ScalePlan):
    """The steps for workers whose state nobody needs, such as environments between two episodes.

    Args:
        group: the open group.
        launch: starts its next generation.
        switch: gets the new group at the commit, to put it where the old one stands.
    """

    def __init__(self, group: WorkerGroup, launch: Launch, switch: Callable[[WorkerGroup], None]) -> None:
        self.old = group
        self._launch = launch
        self._switch = switch
        self._new: WorkerGroup | None = None

    @property
    def new(self) -> WorkerGroup:
        """The new generation, once it is created."""
        assert self._new is not None
        return self._new

    def create(self) -> None:
        """Launch the new generation. Its failures are no failures of the run."""
        self._new = self._launch(self.old)

    def is_created(self) -> bool:
        """Whether every new rank has run its ``setup``."""
        return self.new.ready.done()

    def wait_created(self, left: float) -> None:
        """Wait for the ``setup`` of every new rank."""
        self.new.wait_ready(left)

    def quiesce(self, left: float) -> None:
        """Calls of a rank run one after the other: when all answer, nothing is in flight."""
        self.old.execute("settle").wait(left)

    def transfer(self, left: float) -> None:
        """Nothing is to be moved."""

    def commit(self) -> None:
        """Let the name stand for the new generation."""
        self.new.take_over(self.old)
        self._switch(self.new)

    def resume(self, left: float) -> None:
        """Nothing was held back but by the caller, who waits for this."""

    def destroy(self) -> None:
        """End the old generation."""
        self.old.close()

    def roll_back(self) -> None:
        """End the new generation, if it began."""
        new, self._new = self._new, None
        if new is None:
            return
        try:
            new.close(graceful=False)
        except PlugRLError as error:
            logger.warning("The workers of an attempt to scale %s did not end: %s", self.old.name, one_line(error))


class StateScaling(GroupScaling):
    """The steps for groups of :class:`plugrl.runtime.elastic.StateWorker`, whose whole state moves along."""

    _preparation: Preparation | None = None
    _room: Room | None = None

    def is_created(self) -> bool:
        """Whether every new rank is ready and has room for its share; failures are for :meth:`wait_created`."""
        if not super().is_created():
            return False
        try:
            return self._prepare().done()
        except PlugRLError:
            return True

    def wait_created(self, left: float) -> None:
        """Wait until every new rank is ready and has room for its share."""
        deadline = Deadline(left, None)
        super().wait_created(left)
        self._room = self._prepare().wait(deadline.left(left))

    def transfer(self, left: float) -> None:
        """Let every old rank send its share to those that want it, and compare what both have."""
        assert self._room is not None
        move_state(self.old, self.new, self._room, left)

    def roll_back(self) -> None:
        """Also let the old ranks forget what they offered."""
        super().roll_back()
        try:
            self.old.execute("settle")
        except PlugRLError as error:
            logger.warning("%s is closed already: %s", self.old.name, one_line(error))

    def _prepare(self) -> Preparation:
        self._preparation = self._preparation or Preparation(self.old, self.new)
        return self._preparation


def scale_group(
    group: WorkerGroup, devices: Sequence[int], *, timeout: float, moves_state: bool = False, fault: Fault = no_fault
) -> tuple[WorkerGroup, ScaleReport]:
    """Replace an idle group by one on other devices, which has its name; with ``moves_state`` also its state.

    Returns the new group; the old one is closed. Raises ScaleError, see
    :class:`plugrl.runtime.elastic.Scaling`.
    """
    found = [group]
    kind: Any = StateScaling if moves_state else GroupScaling
    plan = kind(group, lambda old: old.successor(devices), lambda new: found.append(new))
    report = run_steps(plan, timeout=timeout, fault=fault)
    return found[-1], report
