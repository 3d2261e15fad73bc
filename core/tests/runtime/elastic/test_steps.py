"""The transaction of scaling: what is undone, when, and what the error says."""

import pytest

from plugrl.errors import RuntimeTimeout, ScaleError
from plugrl.runtime.elastic import STEPS, ScalePlan, Scaling, run_steps


class Recorded(ScalePlan):
    """Notes what is done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def create(self) -> None:
        self.done.append("create")

    def is_created(self) -> bool:
        return True

    def wait_created(self, left: float) -> None:
        pass

    def quiesce(self, left: float) -> None:
        self.done.append("quiesce")

    def transfer(self, left: float) -> None:
        self.done.append("transfer")

    def commit(self) -> None:
        self.done.append("commit")

    def resume(self, left: float) -> None:
        self.done.append("resume")

    def destroy(self) -> None:
        self.done.append("destroy")

    def roll_back(self) -> None:
        self.done.append("roll_back")


def fault_at(step: str, error: BaseException):
    def fault(point: str) -> None:
        if point == f"scale.{step}":
            raise error

    return fault


def test_all_steps_run_in_order_and_the_stall_is_what_lies_between_create_and_destroy():
    plan = Recorded()
    report = run_steps(plan, timeout=5)
    assert tuple(plan.done) == STEPS == tuple(report.seconds)
    assert report.stall_s == sum(report.seconds[step] for step in ("quiesce", "transfer", "commit", "resume"))


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_before_the_commit_rolls_back_and_one_after_it_does_not(step, caplog):
    plan = Recorded()
    cause = ValueError("broken")
    before = STEPS[: STEPS.index(step)]
    if step == "destroy":
        run_steps(plan, timeout=5, fault=fault_at(step, cause))  # The job goes on: it was tried again, and logged.
        assert tuple(plan.done) == before
        assert sum("old workers did not end" in record.message for record in caplog.records) == 3
        return
    with pytest.raises(ScaleError) as caught:
        run_steps(plan, timeout=5, fault=fault_at(step, cause))
    rolled_back = step in STEPS[:4]
    assert (caught.value.step, caught.value.cause, caught.value.rolled_back) == (step, cause, rolled_back)
    assert f"step {step}" in str(caught.value) and "broken" in str(caught.value)
    assert tuple(plan.done) == (*before, "roll_back") if rolled_back else before


def test_an_interrupt_rolls_back_too_and_stays_what_it_is():
    plan = Recorded()
    with pytest.raises(KeyboardInterrupt):
        run_steps(plan, timeout=5, fault=fault_at("transfer", KeyboardInterrupt()))
    assert plan.done[-1] == "roll_back"


def test_a_step_that_comes_too_late_is_not_begun():
    plan = Recorded()
    with pytest.raises(ScaleError, match="did not come to create within 0 s") as caught:
        run_steps(plan, timeout=0)
    assert isinstance(caught.value.cause, RuntimeTimeout) and plan.done == ["roll_back"]


def test_work_goes_on_while_the_new_workers_start_and_the_attempt_may_be_given_up():
    plan = Recorded()
    plan.is_created = lambda: False
    scaling = Scaling(plan, timeout=5)
    scaling.begin()
    assert plan.done == ["create"] and not scaling.is_created
    scaling.cancel()
    assert plan.done == ["create", "roll_back"]


def test_destroying_is_tried_again():
    plan = Recorded()
    failures = [OSError("busy")]

    def fault(point: str) -> None:
        if point == "scale.destroy" and failures:
            raise failures.pop()

    report = run_steps(plan, timeout=5, fault=fault)
    assert plan.done[-1] == "destroy" and tuple(report.seconds) == STEPS
