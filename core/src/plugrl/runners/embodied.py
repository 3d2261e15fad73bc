"""One run of reinforcement learning in environments: its steps, its checkpoints and its books."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

from plugrl.checkpoints import CheckpointStore, read_json, write_json
from plugrl.checkpoints.layout import PRETRAINED
from plugrl.config.embodied_checks import loss_type_of
from plugrl.config.schema import RunConfig
from plugrl.errors import CheckpointError, WeightSyncError
from plugrl.plugins import hooks
from plugrl.runners.config_path import TRAIN_CONFIG
from plugrl.runners.devices import resident_of
from plugrl.runners.embodied_components import EmbodiedComponents
from plugrl.runners.embodied_episodes import episode_metrics
from plugrl.runners.embodied_eval import EmbodiedValidation, evaluate
from plugrl.runners.embodied_flow import TOGETHER, arrange_embodied, explain_embodied
from plugrl.runners.embodied_rows import Rows, make_rows
from plugrl.runners.rl_flow import print_flow
from plugrl.runners.state import STATE_FILE
from plugrl.runners.step import Step
from plugrl.runtime import Handle
from plugrl.runtime.flow import Item, run_flow
from plugrl.runtime.flow.residency import Residency
from plugrl.tracking.redact import redact
from plugrl.tracking.report_videos import VIDEOS
from plugrl.tracking.tracker import Tracker
from plugrl.workers.demonstrations import save_statistics, with_statistics_in_full
from plugrl.workers.embodied.acting import slices_in_order
from plugrl.workers.embodied.objective import EmbodiedObjective
from plugrl.workers.embodied.trajectory import Trajectory

logger = logging.getLogger(__name__)


class EmbodiedRun:
    """Components and books of one run. Weights of step s have version s; version 0 is where training began."""

    def __init__(
        self,
        config: RunConfig,
        components: EmbodiedComponents,
        tracker: Tracker,
        store: CheckpointStore,
        total_steps: int,
    ) -> None:
        assert components.actor is not None and config.env.train is not None
        self.config = config
        self.components = components
        self.env, self.rollout, self.actor = components.env, components.rollout, components.actor
        self.tracker = tracker
        self.store = store
        self.total_steps = total_steps
        self.train_env = config.env.train
        self.first_step = 1
        self.validations: list[EmbodiedValidation] = []
        self.residency = _residency(config, components)
        verbs = {"gen": self._interact, "adv": self._add_advantages, "update_actor": self._update}
        self._arrangement = arrange_embodied(config, components.devices, verbs)
        self._prepared: Handle[list[None]] | None = None
        self._step: Step
        self._trajectory: Trajectory
        self._rows: Rows

    # ----------------------------------------------------------------- the steps
    def train(self) -> None:
        """Train until the last step."""
        print_flow(explain_embodied(self.config, self.components.devices))
        self._update_rollout(self.first_step - 1)
        for step in self._steps():
            self._flow(step)
            self._sync(step)
            self._finish(step)
        self.store.finish()

    def _steps(self) -> Iterator[Step]:
        if self.config.trainer.val_before_train and self.first_step == 1 and self.config.env.eval is not None:
            opening = Step(0)
            self.validate(opening)
            self.tracker.log(opening.metrics, 0)
        for number in range(self.first_step, self.total_steps + 1):
            hooks.fire("before_train_step", context={"step": number})
            profiled = number in self.config.trainer.profile_steps
            if profiled:
                self.actor.profile(True)
            self.store.check()
            yield Step(number)
            if profiled:
                self.actor.profile(False)
            hooks.fire("after_train_step", context={"step": number})

    def _flow(self, step: Step) -> None:
        self._step = step
        if self._prepared is not None:
            with step.timed("wait_for_reset"):
                self._prepared.wait(self.config.cluster.step_timeout_s)
            self._prepared = None
        record = run_flow(
            self._arrangement.stages,
            self._arrangement.total,
            using=lambda item: self.residency.using(*_components_of(item)),
            transfers={"load": self._load, "unload": self._unload},
            max_ahead=self._arrangement.max_ahead,
        )
        step.seconds |= record.busy()
        step.record(record.metrics())

    def _load(self, name: str) -> None:
        for component in TOGETHER if name == "rollout" else (name,):
            self.residency.load(component)

    def _unload(self, name: str) -> None:
        for component in TOGETHER if name == "rollout" else (name,):
            self.residency.unload(component)

    # ----------------------------------------------------------------- the verbs
    def _interact(self, item: Item) -> None:
        """Let environments and policy go through the passes of the step."""
        step = self._step
        acted, stepped = self.rollout.interact(self.env, step.number)
        self._trajectory = Trajectory.join(slices_in_order([report.parts for report in acted]))
        versions = self._trajectory.versions.unique().tolist()
        if versions != [self.rollout.weight_version]:
            raise WeightSyncError(
                f"Actions were drawn with weights of version {versions}, expected {self.rollout.weight_version}."
            )
        records = [record for report in stepped for record in report.episodes]
        step.record(episode_metrics(records, "env"))
        steps = sum(report.steps for report in stepped)
        dropped = int(step.metrics["env/num_dropped"])
        if dropped:
            logger.warning("Step %d: %d episodes were dropped, because their simulator died.", step.number, dropped)
        step.record(
            {
                "perf/env_steps": steps,
                "timing_s/env/simulate": max(report.simulating_s for report in stepped),
                "timing_s/env/wait": max(report.waiting_s for report in stepped),
                "timing_s/rollout/act": max(report.acting_s for report in acted),
                "timing_s/rollout/wait": max(report.waiting_s for report in acted),
            }
        )
        if self.train_env.overlap_reset and step.number < self.total_steps:
            self._prepared = self.env.prepare(step.number + 1)

    def _add_advantages(self, item: Item) -> None:
        """Say what counts and how good it was."""
        self._rows = make_rows(self._trajectory, self.config)
        self._step.record(self._rows.metrics)
        del self._trajectory

    def _update(self, item: Item) -> None:
        """Improve the policy and its value head: one optimizer step for each mini-batch."""
        config, rows, number = self.config, self._rows, self._step.number
        actor, rollout = config.actor, config.rollout
        batches = rows.mini_batches(
            actor.ppo_mini_batch_size, actor.ppo_epochs, self.actor.group.size, seed=config.trainer.seed, step=number
        )
        if not batches:
            logger.warning("Step %d: nothing counts, so the policy is left as it is.", number)
        objective = EmbodiedObjective.of(
            config,
            critic_warmup=number <= config.trainer.critic_warmup,
            max_episode_steps=self.train_env.steps or 1,
        )
        forward_kwargs = {
            "temperature": rollout.temperature, "top_k": max(rollout.top_k, 0), "top_p": rollout.top_p,
            "compute_logprobs": True, "compute_entropy": True, "compute_values": loss_type_of(config) != "actor",
        }  # fmt: skip
        metrics = self.actor.learn(
            rows.tensors, batches, objective, actor.ppo_micro_batch_size_per_gpu, forward_kwargs
        )
        del self._rows
        self._step.record({"training/optimizer_steps": len(batches), "training/rows": len(rows.kept)})
        self._step.record({name if "/" in name else f"actor/{name}": value for name, value in metrics.items()})

    def _sync(self, step: Step) -> None:
        """Bring the new weights to the rollout, where it is their turn or they are to be measured."""
        due = step.number % self.config.trainer.weight_sync_interval == 0
        if due or self._validates(step.number):
            with step.timed("update_weights"):
                self._update_rollout(step.number)
            hooks.fire("on_weights_synced", context={"version": step.number})

    def _update_rollout(self, version: int) -> None:
        with self.residency.using("actor", "rollout", weights_of=("actor",)):
            self.rollout.update_weights(self.actor, version)
        if "actor" in self.config.flow.swapped:
            self.residency.unload("actor")

    # ----------------------------------------------------------------- validation, checkpoints, books
    def _validates(self, number: int) -> bool:
        frequency = self.config.trainer.test_freq
        wanted = number == self.total_steps or (frequency > 0 and number % frequency == 0)
        return wanted and self.config.env.eval is not None

    def validate(self, step: Step) -> None:
        """Measure the weights that the rollout has."""
        with self.residency.using("env", "rollout"):
            found = evaluate(self.config, self.env, self.rollout, step.number, self.store.root.parent / VIDEOS)
        self.validations.append(found)
        step.record(found.metrics)

    def _finish(self, step: Step) -> None:
        trainer, last = self.config.trainer, step.number == self.total_steps
        if self._validates(step.number):
            with step.timed("testing"):
                self.validate(step)
        if trainer.save_freq > 0 and (last or step.number % trainer.save_freq == 0):
            with step.timed("save_checkpoint"):
                self.save(step.number)
        step.stop_clock()
        step.record({f"timing_s/{name}": seconds for name, seconds in step.seconds.items()})
        step.record(
            {
                "perf/env_steps_per_s": step.metrics["perf/env_steps"] / step.seconds["step"],
                "training/global_step": step.number,
                "training/weight_version": self.rollout.weight_version,
            }
        )
        self.tracker.log(step.metrics, step.number)

    def save(self, number: int) -> None:
        """Write a checkpoint of a step: it appears only when it is whole."""
        with self.store.write(number) as directory:
            with self.residency.using("actor"):
                self.actor.save(directory, number, self._progress())
            values = with_statistics_in_full(redact(self.config.model_dump(mode="json")), self.config.model)
            write_json(directory / PRETRAINED / TRAIN_CONFIG, values)
            save_statistics(values, directory / PRETRAINED)
            path = directory / STATE_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"step": number, "embodied": True})

    def resume(self, checkpoint: Any) -> None:
        """Go on from a verified checkpoint. Seeds of episodes and draws follow from the step, so nothing else is kept.

        Raises:
            CheckpointError: it is of no run in environments.
        """
        self.store.protect(checkpoint)
        with self.residency.using("actor"):
            self.actor.load(checkpoint, self._progress())
        self.first_step = embodied_step(checkpoint) + 1
        if not self.train_env.reset_each_epoch:
            logger.warning("env.train.reset_each_epoch=false: episodes that were running begin anew.")

    def _progress(self) -> dict[str, Any]:
        """What a checkpoint records of this run beside what the engine knows."""
        return {
            "batch_size": self.config.actor.ppo_mini_batch_size,
            "grad_accum_steps": 1,
            "epoch": 0,
            "seed": self.config.trainer.seed,
            "tracker_run_id": self.tracker.run_id,
        }


def embodied_step(checkpoint: Any) -> int:
    """Return the step of a checkpoint. Raises CheckpointError when it is of no run in environments."""
    path = checkpoint / STATE_FILE
    state = read_json(path) if path.exists() else {}
    if not state.get("embodied"):
        raise CheckpointError(f"trainer.resume: {checkpoint} is not of a run in environments.")
    return int(state["step"])


def _components_of(item: Item) -> tuple[str, ...]:
    return TOGETHER if item.stage.component == "rollout" else (item.stage.component,)


def _residency(config: RunConfig, components: EmbodiedComponents) -> Residency:
    """Return what holds the devices of the components, which stand on their devices now."""
    groups: dict[str, Any] = {"env": components.env, "rollout": components.rollout, "actor": components.actor}
    residents = [resident_of(name, cast(Any, group), config) for name, group in groups.items()]
    budget = config.cluster.device_memory_mib
    devices = {device for resident in residents for device in resident.devices}
    budgets = {device: budget for device in devices} if budget is not None else {}
    residency = Residency(residents, budgets, timeout=config.cluster.step_timeout_s)
    residency.check()
    residency.settle()
    return residency
