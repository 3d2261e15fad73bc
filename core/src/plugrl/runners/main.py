"""What the commands ``train``, ``sft`` and ``eval`` do once their inputs are checked: start Ray, run a loop, report."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from plugrl.checkpoints import CheckpointStore, Manifest, read_json
from plugrl.checkpoints.store import newest_step
from plugrl.config.schema import RunConfig
from plugrl.errors import MissingDependency
from plugrl.plugins import hooks, load_plugins
from plugrl.runners.components import (
    SUPERVISED_WORKER,
    Component,
    Components,
    explaining_shortage,
    launch,
    rl_components,
)
from plugrl.runners.grpo import train_grpo
from plugrl.runners.inputs import Inputs, SftInputs, check_eval_inputs, check_rl_inputs, check_sft_inputs, planned
from plugrl.runners.ppo import train_ppo
from plugrl.runners.preflight import check_shared_folder
from plugrl.runners.preloading import preload_of
from plugrl.runners.prompts import PromptData
from plugrl.runners.replanning import PlanFollower
from plugrl.runners.rl import RlRun, rl_plan
from plugrl.runners.sft import STEP_FILE, SftRun, is_finished, train_sft
from plugrl.runners.summary import print_summary
from plugrl.runners.validation import Validation, validate
from plugrl.runtime import RaySession, trace
from plugrl.runtime.flow.timeline import collect, write_timeline
from plugrl.tracking import RunDirectory, Tracker, write_curves, write_report
from plugrl.tracking.lock import FolderLock
from plugrl.workers.ranks import RayRanks, SupervisedGroup

logger = logging.getLogger(__name__)

Planner = Callable[[RunConfig, RaySession, PromptData, Inputs], tuple[RunConfig, PlanFollower]]
"""Returns the configuration to train with and what keeps to its plan; may start and end components in the session."""

WEIGHTS = "pretrained_model"
"""The part of a checkpoint that is a model folder."""


def run_train(config: RunConfig, planner: Planner | None = None) -> None:
    """Train by reinforcement learning, after supervised training if the configuration asks for it; print the result.

    ``planner`` is asked for placement and flow when the model is there that reinforcement learning begins with.
    """
    if config.is_embodied:
        from plugrl.runners.embodied_main import run_embodied

        run_embodied(config)
        return
    with FolderLock(RunDirectory(config.trainer.default_local_dir).path) as lock:
        _train(config, lock, planner)


def _train(config: RunConfig, lock: FolderLock, planner: Planner | None) -> None:
    began = time.time()
    inputs, data = check_rl_inputs(config)
    total = rl_plan(config, len(data.train), 1).total_steps
    if inputs.resume_from is None:
        set_aside(inputs.run_dir.path, config.trainer.resume)
        lock.renew()
    if step_of(inputs.resume_from) >= total:
        print(
            f"Nothing is left to do: {inputs.resume_from} is of step {step_of(inputs.resume_from)}, and the run has "
            f"{total}. Raise trainer.total_training_steps (or trainer.total_epochs) to go on."
        )
        return
    with opened(config, inputs.run_dir, inputs.resume_from, phase="rl") as (session, tracker):
        with explaining_shortage(session):
            plan = planned(config, data, session.layout.nodes)
        if config.sft.before_rl:
            config = after_sft(config, inputs, session, tracker)
        follower = None
        if planner is not None:
            config, follower = planner(config, session, data, inputs)
            plan = planned(config, data, session.layout.nodes)
        tracker.start_phase("rl", plan.total_steps, step_of(inputs.resume_from))
        components = launch(session, config, rl_components(config), total_steps=plan.total_steps)
        assert inputs.reward is not None
        run = RlRun(config, components, data, inputs.processor, inputs.reward, tracker, inputs.store, plan, follower)
        if inputs.resume_from is not None:
            run.resume(inputs.resume_from)
        (train_ppo if config.uses_critic else train_grpo)(run)
        if config.flow.trace:
            write_timeline(inputs.run_dir.timeline, collect(session))
        components.close()
    finish(config, inputs.run_dir, inputs.store, run.validations, began)


def run_sft(config: RunConfig) -> None:
    """Train on reference responses, by workers that Ray starts, and print the result."""
    began = time.time()
    with FolderLock(RunDirectory(config.trainer.default_local_dir).path) as lock:
        inputs = check_sft_inputs(config)
        if nothing_left(inputs, config):
            return
        if inputs.resume_from is None:
            set_aside(inputs.run_dir.path, config.trainer.resume)
            lock.renew()
        with opened(config, inputs.run_dir, inputs.resume_from, phase="sft") as (session, tracker):
            run = _sft(config, inputs, session, tracker)
        finish(config, inputs.run_dir, inputs.store, run.validations, began)


def nothing_left(inputs: SftInputs, config: RunConfig) -> bool:
    """Whether the checkpoint that is resumed is of the last step; says so."""
    done = step_of(inputs.resume_from)
    if inputs.resume_from is None or done < config.sft.total_steps:
        return False
    print(
        f"Nothing is left to do: {inputs.resume_from} is of step {done}, and the run has {config.sft.total_steps}. "
        "Raise sft.total_steps (steps) to go on."
    )
    return True


def run_eval(config: RunConfig, checkpoint: str | None = None) -> None:
    """Measure ``checkpoint`` (or ``model.path``) on the held-out prompts and print the result."""
    if config.is_embodied:
        from plugrl.runners.embodied_main import run_embodied_eval

        run_embodied_eval(config, checkpoint)
        return
    began = time.time()
    if checkpoint is not None:
        config = with_model(config, weights_of(checkpoint))
    processor, reward, data = check_eval_inputs(config)
    with _session(config) as session:
        components = launch(session, config, ("rollout",), total_steps=1)
        assert components.rollout is not None
        validation = validate(config, components.rollout, data, processor, reward, 0, _say)
        components.close()
    for name, value in sorted(validation.metrics.items()):
        print(f"{name}: {value:.4f}")
    print_summary([validation], seconds=time.time() - began, steps=0, tokens=0, report=None)


def _say(activity: str, done: int, total: int) -> None:
    print(f"{activity} {done}/{total}", flush=True)


@contextmanager
def opened(
    config: RunConfig, run_dir: RunDirectory, resume_from: Path | None, *, phase: str
) -> Iterator[tuple[RaySession, Tracker]]:
    """Open the run's record and Ray, and close both however the block ends."""
    with recorded(config, run_dir, resume_from, phase=phase) as tracker:
        env = {}
        if config.flow.trace:
            trace.enable()
            env = {trace.VARIABLE: "1"}
        with _session(config, env) as session:
            check_shared_folder(session, run_dir.path)
            yield session, tracker


def _session(config: RunConfig, env: Mapping[str, str] | None = None) -> RaySession:
    return RaySession(config.cluster, load_plugins(), platform=config.platform, env=env, preload=preload_of(config))


@contextmanager
def recorded(
    config: RunConfig, run_dir: RunDirectory, resume_from: Path | None, *, phase: str
) -> Iterator[Tracker]:
    """Open the run's record and close it however the block ends."""
    resume_step = step_of(resume_from) if resume_from else None
    run_dir.start(config, load_plugins(), resume_step=resume_step, phase=phase)
    for line in hooks.fire("report_header"):
        print(line)
    run_id = tracker_id(run_dir, resume_from)
    with Tracker(config.trainer.logger, run_dir, config, resume_step=resume_step, run_id=run_id) as tracker:
        yield tracker


def tracker_id(run_dir: RunDirectory, resume_from: Path | None) -> str | None:
    """Return the id that tracking services know the run by, as its checkpoint holds it; None for a new run.

    A run whose supervised phase was interrupted has its checkpoints there alone.
    """
    checkpoint = resume_from or newest_step(run_dir.path / "sft")
    if checkpoint is None:
        return None
    record = checkpoint / STEP_FILE
    stored = read_json(record).get("tracker_run_id") if record.is_file() else None
    # Checkpoints of earlier versions hold none: then the id was made of the folder's name.
    return stored or hashlib.sha256(str(run_dir.path).encode()).hexdigest()[:12]


def after_sft(config: RunConfig, inputs: Inputs, session: RaySession, tracker: Tracker) -> RunConfig:
    """Return the configuration with the model that supervised training leaves.

    A phase that lies there finished is not repeated; one that was interrupted goes on from its last checkpoint.
    """
    store = CheckpointStore(inputs.run_dir.path / "sft")
    found = store.resolve("auto")
    if found is None or not is_finished(found):
        prompts = PromptData(config, inputs.processor, supervised=True)
        phase = SftInputs(inputs.run_dir, store, found, inputs.processor, prompts, inputs.reward)
        _sft(config, phase, session, tracker)
        found = store.resolve("last")
    assert found is not None
    from plugrl.checkpoints.convert import gather_if_needed

    gather_if_needed(found / WEIGHTS)
    return with_model(config, found / WEIGHTS)


def _sft(config: RunConfig, inputs: SftInputs, session: RaySession, tracker: Tracker) -> SftRun:
    total = config.sft.total_steps
    tracker.start_phase("sft", total, step_of(inputs.resume_from))
    needed: tuple[Component, ...] = ("actor", "rollout") if inputs.measures_accuracy else ("actor",)
    components = launch(
        session, config, needed, total_steps=total, optim=config.sft.optim, actor_worker=SUPERVISED_WORKER
    )
    assert components.actor is not None
    group = SupervisedGroup(RayRanks(components.actor.group, config.cluster.step_timeout_s))
    accuracy = _accuracy(config, inputs, components, tracker) if components.rollout is not None else None
    run = SftRun(config, group, tracker, inputs.store, accuracy, inputs.resume_from)
    train_sft(run)
    components.close()
    return run


def _accuracy(
    config: RunConfig, inputs: SftInputs, components: Components, tracker: Tracker
) -> Callable[[int], Validation]:
    """Return what measures the policy's own answers to the held-out prompts."""
    rollout, actor = components.rollout, components.actor
    prompts, processor, reward = inputs.prompts, inputs.processor, inputs.reward
    assert rollout and actor and prompts and processor and reward

    def measure(step: int) -> Validation:
        rollout.update_weights(actor, step)
        return validate(config, rollout, prompts, processor, reward, step, tracker.progress)

    return measure


def with_model(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration with policy and critic built from a model folder instead of their own source."""
    model = config.model.from_folder(str(folder))
    critic = config.critic
    if critic.model is not None:
        critic = critic.model_copy(update={"model": critic.model.from_folder(str(folder))})
    return config.model_copy(update={"model": model, "critic": critic})


def weights_of(checkpoint: str) -> Path:
    """Return the model folder of a checkpoint, of a folder of checkpoints, or the folder itself."""
    path = Path(checkpoint)
    if (path / "config.json").exists():
        return path
    found = CheckpointStore(path).resolve(path)
    assert found is not None
    return found / WEIGHTS


def set_aside(run_dir: Path, resume: str) -> None:
    """Rename the folder of an earlier run, so that a new one never mixes with it and nothing is lost.

    With ``resume`` "auto" a folder without a checkpoint is kept: its supervised phase, if finished, is not repeated.
    """
    earlier = [*run_dir.glob("checkpoints/[0-9]*")]
    if resume == "disable":
        earlier += [*run_dir.glob("metrics.jsonl"), *run_dir.glob("sft/[0-9]*")]
    if not earlier:
        return
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    target = run_dir.with_name(f"{run_dir.name}.{stamp}")
    run_dir.rename(target)
    logger.warning("The earlier run in %s was moved to %s.", run_dir, target)


def finish(
    config: RunConfig, run_dir: RunDirectory, store: CheckpointStore, validations: list[Validation], began: float
) -> None:
    """Write the report and print the table; its figures are of the steps since ``began``, in seconds since 1970."""
    try:
        write_curves(run_dir)
    except MissingDependency as error:  # The report draws its own.
        logger.warning("No %s: %s", run_dir.curves.name, error)
    report = write_report(run_dir)
    rows = [row for row in run_dir.read_metrics() if row.get("time", 0) >= began]
    tokens = sum(row.get("perf/total_num_tokens") or 0 for row in rows)
    print_summary(
        validations,
        seconds=time.time() - began,
        steps=sum(1 for row in rows if row.get("step")),
        tokens=tokens,
        report=report,
        checkpoint=store.resolve("auto"),
    )


def step_of(checkpoint: Path | None) -> int:
    """Return the step of a checkpoint, whatever its folder is called; 0 without one."""
    return 0 if checkpoint is None else Manifest.load(checkpoint).step
