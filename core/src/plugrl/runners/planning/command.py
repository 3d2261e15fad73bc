"""What `plugrl plan CONFIG` does: plan and write, or plan and train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from plugrl.checkpoints import CheckpointStore
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.models import get_processor
from plugrl.plugins import load_plugins
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import explaining_shortage, rl_components
from plugrl.runners.inputs import Inputs
from plugrl.runners.launcher_guard import check_launcher_variables
from plugrl.runners.main import WEIGHTS, run_train, with_model
from plugrl.runners.planning.planner import check_made_for, plan_configuration, with_plan
from plugrl.runners.preflight import check_parts, preflight
from plugrl.runners.prompts import PromptData
from plugrl.runners.replanning import PlanFollower
from plugrl.runners.sft import is_finished
from plugrl.runtime import RaySession
from plugrl.runtime.planner import PlanArtefact, write_artefact
from plugrl.tracking import RunDirectory

Say = Callable[[str], None]
Show = Callable[[PlanArtefact], None]
"""Prints a plan; raises NoPlan where there is none."""


def make_plan(config: RunConfig, *, devices: int | None = None, say: Say) -> PlanArtefact:
    """Measure and plan; train nothing. Raises UserError for whatever `plugrl train` would refuse."""
    check_launcher_variables()
    needed = rl_components(config)
    preflight(config, "train", needed)
    check_parts(config, needed)
    measured = _as_supervised(config, say)
    processor = get_processor(config.model)
    data = PromptData(config, processor)
    reward = RewardManager(config.reward)
    with RaySession(config.cluster, load_plugins(), platform=config.platform) as session, explaining_shortage(session):
        return plan_configuration(measured, session, data, processor, reward, given=config, devices=devices, say=say)


def train_planned(
    config: RunConfig, *, plan: PlanArtefact | None = None, devices: int | None = None, say: Say, show: Show
) -> None:
    """Train with the best plan: ``plan``, or one that is made when reinforcement learning begins.

    The plan and the configuration that follows it are written into the folder of the run.
    """
    if plan is not None:
        check_made_for(plan, config)
    run_dir = RunDirectory(config.trainer.default_local_dir)

    def planner(
        trained: RunConfig, session: RaySession, data: PromptData, inputs: Inputs
    ) -> tuple[RunConfig, PlanFollower]:
        assert inputs.reward is not None
        artefact = plan or plan_configuration(
            trained, session, data, inputs.processor, inputs.reward, given=config, devices=devices, say=say
        )
        show(artefact)
        best = artefact.best
        if best is None:
            raise ConfigError("There is no valid plan.")
        write_artefact(artefact, run_dir.plan)
        run_dir.write_config(with_plan(config, best))
        return with_plan(trained, best), PlanFollower(artefact, lambda found: write_artefact(found, run_dir.plan))

    run_train(config, planner)


def _as_supervised(config: RunConfig, say: Say) -> RunConfig:
    """Return the configuration with the model that its supervised phase has left, where that is finished."""
    if not config.sft.before_rl:
        return config
    found = CheckpointStore(Path(config.trainer.default_local_dir) / "sft").resolve("auto")
    if found is not None and is_finished(found):
        from plugrl.checkpoints.convert import gather_if_needed

        gather_if_needed(found / WEIGHTS)
        return with_model(config, found / WEIGHTS)
    say(
        "sft.before_rl: the supervised phase of this run is not there, so the model is measured as it is before it, "
        "whose answers may be longer; --apply trains it first."
    )
    return config
