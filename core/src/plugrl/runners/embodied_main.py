"""What `train` and `eval` do in environments, once the configuration is loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from plugrl.algorithms.embodied import check_embodied_options
from plugrl.checkpoints import CheckpointStore
from plugrl.checkpoints.layout import PRETRAINED
from plugrl.config.embodied_checks import Task, loss_type_of
from plugrl.config.schema import RunConfig
from plugrl.engines import EngineRegistry
from plugrl.envs.registry import get_env
from plugrl.errors import ConfigError, MissingDependency, UserError
from plugrl.models.registry import MODELS
from plugrl.platforms import get_platform
from plugrl.platforms.visible import visible_count
from plugrl.plugins import hooks, load_plugins
from plugrl.runners.components import check_sharing, placement
from plugrl.runners.config_path import TRAIN_CONFIG
from plugrl.runners.embodied import EmbodiedRun, embodied_step
from plugrl.runners.embodied_components import MEASURING, TRAINING, check_placed, launch_embodied
from plugrl.runners.embodied_eval import EmbodiedValidation, evaluate
from plugrl.runners.embodied_flow import arrange_embodied
from plugrl.runners.embodied_summary import print_embodied_summary
from plugrl.runners.launcher_guard import check_launcher_variables
from plugrl.runners.preflight import check_placed_engines
from plugrl.runtime import RaySession
from plugrl.tracking import RunDirectory, write_curves, write_report
from plugrl.tracking.lock import FolderLock
from plugrl.tracking.report_videos import VIDEOS
from plugrl.tracking.tracker import check_loggers
from plugrl.workers.demonstrations import check_statistics
from plugrl.workers.training import engine_type_of

logger = logging.getLogger(__name__)


def run_embodied(config: RunConfig) -> None:
    """Train in environments and print the result."""
    from plugrl.runners.main import opened, set_aside, step_of

    with FolderLock(RunDirectory(config.trainer.default_local_dir).path) as lock:
        began = time.time()
        run_dir, store, resume_from = check_embodied_inputs(config)
        total = total_steps(config)
        if resume_from is None:
            set_aside(run_dir.path, config.trainer.resume)
            lock.renew()
        elif step_of(resume_from) >= total:
            print(
                f"Nothing is left to do: {resume_from} is of step {step_of(resume_from)}, and the run has {total}. "
                "Raise trainer.total_training_steps to go on."
            )
            return
        with opened(config, run_dir, resume_from, phase="rl") as (session, tracker):
            tracker.start_phase("rl", total, step_of(resume_from))
            components = launch_embodied(session, config, TRAINING, total_steps=total)
            run = EmbodiedRun(config, components, tracker, store, total)
            if resume_from is not None:
                run.resume(resume_from)
            run.train()
            components.close()
        _finish(run_dir, store, run.validations, began)


def run_embodied_eval(config: RunConfig, checkpoint: str | None = None) -> EmbodiedValidation:
    """Measure ``checkpoint`` (or ``model.path``) in the environments of ``env.eval``, print and return the result."""
    from plugrl.runners.main import weights_of, with_model

    began = time.time()
    if checkpoint is not None:
        config = with_model(config, weights_of(checkpoint))
    check_embodied_parts(config, "eval")
    with RaySession(config.cluster, load_plugins(), platform=config.platform) as session:
        components = launch_embodied(session, config, MEASURING)
        folder = RunDirectory(config.trainer.default_local_dir).path / VIDEOS
        found = evaluate(config, components.env, components.rollout, 0, folder)
        components.close()
    for name, value in sorted(found.metrics.items()):
        if name.count("/") == 1 or name.startswith("eval/success_once/"):  # the table has the rest of each task
            print(f"{name}: {value:.4f}")
    print_embodied_summary([found], seconds=time.time() - began, steps=0)
    return found


def total_steps(config: RunConfig) -> int:
    """Return the steps of training: where only epochs are given, each has one step."""
    return config.trainer.total_training_steps or config.trainer.total_epochs


def check_embodied_inputs(config: RunConfig) -> tuple[RunDirectory, CheckpointStore, Path | None]:
    """Check what `train` needs before anything is started; returns folder, checkpoints, and the one to go on from.

    Raises:
        UserError: whatever is wrong with configuration, options, devices or checkpoint.
    """
    from plugrl.runners.inputs import refuse_earlier_run

    check_launcher_variables()
    check_loggers(config.trainer.logger)
    check_embodied_parts(config, "train")
    run_dir, trainer = RunDirectory(config.trainer.default_local_dir), config.trainer
    total = total_steps(config)
    store = CheckpointStore(run_dir.checkpoints, trainer.max_ckpt_to_keep, trainer.keep_every, total_steps=total)
    if trainer.resume == "new":
        refuse_earlier_run(run_dir.path)
        return run_dir, store, None
    resume_from = store.resolve(trainer.resume)
    if resume_from is not None:
        embodied_step(resume_from)
        check_statistics(config.model, resume_from, PRETRAINED, TRAIN_CONFIG)
    return run_dir, store, resume_from


def check_embodied_parts(config: RunConfig, task: Task) -> None:
    """Check options and devices, and load environment, model and engine here first. Raises UserError."""
    for diagnostic in hooks.diagnose(config):
        logger.warning("%s", diagnostic.message)
    if task == "train":
        _check_options(config)
    if config.cluster.ray_address is not None:
        return  # its nodes and what they have are known only after joining
    platform = get_platform(config.platform)
    needed = TRAINING if task == "train" else MEASURING
    devices = placement(config, needed, visible_count(platform))
    check_sharing(devices, platform)
    check_placed(config, task, devices)
    for split in (config.env.train if task == "train" else None, config.env.eval):
        if split is not None:
            get_env(split.env_type)
    MODELS.get(config.model.model_type)
    if task == "train":
        arrange_embodied(config, devices)
        EngineRegistry.get_engine_cls(engine_type_of("actor", config.model), config.actor.strategy)
        check_placed_engines(config, "train", ("actor",))


def _check_options(config: RunConfig) -> None:
    """Raise ConfigError for an option that the estimator does not have."""
    algorithm = config.algorithm
    try:
        check_embodied_options("advantage", algorithm.adv_estimator, algorithm.options)
        check_embodied_options("loss", loss_type_of(config), {})
    except UserError as error:
        raise ConfigError(f"algorithm.options: {error}") from error


def _finish(run_dir: RunDirectory, store: CheckpointStore, found: Sequence[EmbodiedValidation], began: float) -> None:
    """Write curves and report, and print the result."""
    try:
        write_curves(run_dir)
    except MissingDependency as error:  # The report draws its own.
        logger.warning("No %s: %s", run_dir.curves.name, error)
    report = write_report(run_dir)
    rows = [row for row in run_dir.read_metrics() if row.get("time", 0) >= began and row.get("step")]
    print_embodied_summary(
        found,
        seconds=time.time() - began,
        steps=len(rows),
        env_steps=int(sum(row.get("perf/env_steps") or 0 for row in rows)),
        report=report,
        checkpoint=store.resolve("auto"),
    )

