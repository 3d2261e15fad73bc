"""The steps of scaling a group, as a transaction: until the commit everything can be undone."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plugrl.errors import RuntimeTimeout, ScaleError, one_line
from plugrl.runtime.deadline import Deadline

logger = logging.getLogger(__name__)

STEPS = ("create", "quiesce", "transfer", "commit", "resume", "destroy")
_COMMIT = STEPS.index("commit")
_DESTROY_ATTEMPTS = 3

Fault = Callable[[str], None]
"""Called with the name of a fault point, ``scale.create`` and so on, before its step; what it raises is the fault."""


def no_fault(point: str) -> None:
    """Inject nothing."""


@dataclass(frozen=True, kw_only=True)
class ScaleReport:
    """What a scaling took, in seconds by step."""

    seconds: Mapping[str, float]

    @property
    def stall_s(self) -> float:
        """Seconds in which the component could not work: all but creating and destroying."""
        return sum(self.seconds[step] for step in STEPS[1:-1])


class ScalePlan(ABC):
    """What the steps do for one kind of component. ``left`` is the time that remains, in seconds."""

    @abstractmethod
    def create(self) -> None:
        """Begin to start the new workers beside the old ones, which go on working; return at once."""

    @abstractmethod
    def is_created(self) -> bool:
        """Whether the new workers are ready, or have failed; never blocks."""

    @abstractmethod
    def wait_created(self, left: float) -> None:
        """Wait until the new workers are ready."""

    @abstractmethod
    def quiesce(self, left: float) -> None:
        """Let what is in flight finish, and hold back what would come next."""

    @abstractmethod
    def transfer(self, left: float) -> None:
        """Bring the state to the new workers and prove that it is the same; the old ones keep theirs."""

    @abstractmethod
    def commit(self) -> None:
        """Make the new workers the component."""

    @abstractmethod
    def resume(self, left: float) -> None:
        """Let work go on."""

    @abstractmethod
    def destroy(self) -> None:
        """End the old workers; may be called again after a failure."""

    @abstractmethod
    def roll_back(self) -> None:
        """Undo what was done before the commit: end the new workers; the old ones work on. Never raises."""


class Scaling:
    """One scaling: :meth:`begin`, then work as long as :attr:`is_created` says no, then :meth:`finish` at a barrier.

    Whatever is raised, of an attempt that had not been committed nothing is left, and the component is what it was.
    """

    def __init__(self, plan: ScalePlan, *, timeout: float, fault: Fault = no_fault) -> None:
        self._plan = plan
        self._fault = fault
        self._deadline = Deadline(timeout, None)
        self._timeout = timeout
        self._seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def begin(self) -> None:
        """Begin to create the new workers. Raises ScaleError."""
        self._guarded("create", self._create)

    @property
    def is_created(self) -> bool:
        """Whether :meth:`finish` would not wait for the new workers: they are ready, failed, or out of time."""
        return self._plan.is_created() or self._deadline.is_over

    def finish(self) -> ScaleReport:
        """Wait for the new workers and do all other steps; the component must not be called meanwhile.

        Raises:
            ScaleError: naming the step and the cause. ``rolled_back`` says that it was before the commit: the component
                is what it was. After the commit the new workers are the component.
        """
        self._guarded("create", lambda: self._plan.wait_created(self._left("create")))
        self._seconds["create"] = time.monotonic() - self._began
        actions: dict[str, Callable[[], None]] = {
            "quiesce": lambda: self._plan.quiesce(self._left("quiesce")),
            "transfer": lambda: self._plan.transfer(self._left("transfer")),
            "commit": self._plan.commit,
            "resume": lambda: self._plan.resume(self._left("resume")),
        }
        for step, action in actions.items():
            self._timed(step, action)
        self._destroy()
        return ScaleReport(seconds=self._seconds)

    def cancel(self) -> None:
        """Give the attempt up; the component is what it was."""
        self._plan.roll_back()

    # ----------------------------------------------------------------- details
    def _create(self) -> None:
        self._fault("scale.create")
        self._left("create")
        self._plan.create()

    def _timed(self, step: str, action: Callable[[], None]) -> None:
        began = time.monotonic()

        def run() -> None:
            self._fault(f"scale.{step}")
            action()

        self._guarded(step, run)
        self._seconds[step] = time.monotonic() - began

    def _guarded(self, step: str, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            committed = STEPS.index(step) > _COMMIT
            if not committed:
                self._plan.roll_back()
            if isinstance(error, Exception):
                raise ScaleError(step, error, rolled_back=not committed) from error
            raise

    def _destroy(self) -> None:
        """End the old workers. The new ones are at work, so a failure is no reason to stop them."""
        began = time.monotonic()
        for attempt in range(1, _DESTROY_ATTEMPTS + 1):
            try:
                self._fault("scale.destroy")
                self._plan.destroy()
                break
            except Exception as error:  # whatever it is, the run goes on without the old workers
                logger.warning(
                    "The old workers did not end (attempt %d of %d): %s", attempt, _DESTROY_ATTEMPTS, one_line(error)
                )
        self._seconds["destroy"] = time.monotonic() - began

    def _left(self, step: str) -> float:
        left = self._deadline.left(self._timeout)
        if left <= 0:
            raise RuntimeTimeout(f"Scaling did not come to {step} within {self._timeout:g} s.")
        return left


def run_steps(plan: ScalePlan, *, timeout: float, fault: Fault = no_fault) -> ScaleReport:
    """Do all steps one after another within ``timeout`` seconds; raises what :meth:`Scaling.finish` does."""
    scaling = Scaling(plan, timeout=timeout, fault=fault)
    scaling.begin()
    return scaling.finish()
