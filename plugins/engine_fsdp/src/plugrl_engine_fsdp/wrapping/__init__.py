"""Which modules of a policy become units that are gathered one at a time, and in which precision each computes."""

from plugrl_engine_fsdp.config.problems import Problem, WrapConfigError
from plugrl_engine_fsdp.wrapping.plan import ROOT, WrapPlan, WrapUnit, resolve_wrap_plan

__all__ = ["ROOT", "Problem", "WrapConfigError", "WrapPlan", "WrapUnit", "resolve_wrap_plan"]
