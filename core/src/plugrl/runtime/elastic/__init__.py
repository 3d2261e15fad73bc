"""Groups that grow and shrink while a run goes on: create before destroy, and roll back on failure."""

from plugrl.runtime.elastic.groups import GroupScaling, Launch, StateScaling, scale_group
from plugrl.runtime.elastic.steps import STEPS, Fault, ScalePlan, ScaleReport, Scaling, no_fault, run_steps

__all__ = [
    "STEPS", "Fault", "GroupScaling", "Launch", "ScalePlan", "ScaleReport", "Scaling", "StateScaling", "no_fault",
    "run_steps", "scale_group",
]  # fmt: skip
