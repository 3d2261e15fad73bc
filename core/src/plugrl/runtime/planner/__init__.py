"""The planner: which components run on which devices, in which chunks and order, and what is unloaded in between.

Pure integers: it imports neither ray nor torch, and nothing here starts anything. :func:`solve`, :func:`evaluate`,
:func:`simulate` and :func:`solve_loop` take and return the plain data of the cost model's JSON format; the typed models
behind them are in :mod:`plugrl.runtime.planner.case`.
"""

from __future__ import annotations

from plugrl.runtime.planner.artefact import PlanArtefact, artefact_from_dict, make_artefact, write_artefact
from plugrl.runtime.planner.case import Case, Component, Mode, ModePlan, Phase, Plan, Result, Stage
from plugrl.runtime.planner.collapse import collapse
from plugrl.runtime.planner.cost import PhaseCost, StageCost, Verdict, evaluate, evaluate_plan, phase_costs
from plugrl.runtime.planner.drift import Drift, DriftMonitor, rescaled
from plugrl.runtime.planner.infeasible import NoPlan, TightestNeed, require_plan
from plugrl.runtime.planner.layout import plan_from_keys, plan_to_keys
from plugrl.runtime.planner.loop import Arrangement, LoopCase, best_arrangement, solve_loop
from plugrl.runtime.planner.profile import (
    ComponentProfile,
    Loading,
    Point,
    Profile,
    ProfiledCase,
    case_from_profile,
)
from plugrl.runtime.planner.search import solve, solve_case
from plugrl.runtime.planner.simulation import Span, simulate, simulate_plan, spans
from plugrl.runtime.planner.timing import bubble_ratio, loop_time, pipeline_time

__all__ = [
    "Arrangement",
    "Case",
    "Component",
    "ComponentProfile",
    "Drift",
    "DriftMonitor",
    "Loading",
    "LoopCase",
    "Mode",
    "ModePlan",
    "NoPlan",
    "Phase",
    "PhaseCost",
    "Plan",
    "PlanArtefact",
    "Point",
    "Profile",
    "ProfiledCase",
    "Result",
    "Span",
    "Stage",
    "StageCost",
    "TightestNeed",
    "Verdict",
    "artefact_from_dict",
    "best_arrangement",
    "bubble_ratio",
    "case_from_profile",
    "collapse",
    "evaluate",
    "evaluate_plan",
    "loop_time",
    "make_artefact",
    "phase_costs",
    "pipeline_time",
    "plan_from_keys",
    "plan_to_keys",
    "require_plan",
    "rescaled",
    "simulate",
    "simulate_plan",
    "solve",
    "solve_case",
    "solve_loop",
    "spans",
    "write_artefact",
]
