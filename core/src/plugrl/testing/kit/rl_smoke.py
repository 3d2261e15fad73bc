"""The runs behind L5: a few steps of the real runner, once from the start and once resumed, in one Ray session."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from plugrl.config.loader import load_config
from plugrl.config.schema import RunConfig
from plugrl.engines import EngineRegistry
from plugrl.engines.registry import ENGINES
from plugrl.errors import NotRegistered
from plugrl.platforms.devices import groups_per_device
from plugrl.plugins import load_plugins
from plugrl.rollouts.registry import ROLLOUTS
from plugrl.runners.components import launch, rl_components
from plugrl.runners.grpo import train_grpo
from plugrl.runners.inputs import check_rl_inputs, planned
from plugrl.runners.main import recorded, step_of
from plugrl.runners.preloading import preload_of
from plugrl.runners.rl import RlRun
from plugrl.runtime import RaySession
from plugrl.testing.kit.checks import CheckSkipped
from plugrl.testing.kit.context import Context

STEPS = 3
RESUMED_FROM = 1
START_S = 180.0
STORE_BYTES = 80 * 2**20
_CLOCKS = ("timing", "perf/", "time", "training/seconds")
MODEL_TYPE = "language_model"

Digests = dict[str, str]


@dataclass(frozen=True)
class Course:
    """What one run gave: metrics of each step without clocks, and digests of the weights.

    before, after: of the actor, when training began and when it ended. rollout: of each rollout worker at the end.
    """

    metrics: dict[int, dict[str, float]]
    before: Digests
    after: Digests
    rollout: list[Digests] = field(default_factory=list)


def whole_run(kit: Context) -> Course:
    """Return the run from the start, made on the first call."""
    if "whole" not in kit.cache:
        kit.cache["whole"] = _run(kit, _config(kit, "whole"))
    return kit.cache["whole"]


def resumed_run(kit: Context) -> Course:
    """Return the run that goes on from the first step of the whole one."""
    whole_run(kit)
    if "resumed" not in kit.cache:
        steps = (kit.folder / "whole" / "checkpoints").glob("[0-9]*")
        checkpoint = next(path for path in steps if step_of(path) == RESUMED_FROM)
        kit.cache["resumed"] = _run(kit, _config(kit, "resumed", f"trainer.resume={checkpoint}"))
    return kit.cache["resumed"]


def end_session(kit: Context) -> None:
    """End the Ray session of the runs. Raises CheckSkipped when no run has begun one."""
    session = kit.cache.pop("session", None)
    if session is None:
        raise CheckSkipped("no run has begun")
    session.shutdown(graceful=True)


# --------------------------------------------------------------------- configuration
def _config(kit: Context, name: str, *overrides: str) -> RunConfig:
    """Return the configuration of a run. Raises CheckSkipped when what it names is not installed."""
    baseline = kit.options.get("baseline") or str(_data("rl_smoke.yaml"))
    try:
        return load_config(
            baseline,
            [
                f"platform={kit.platform_name}",
                f"trainer.default_local_dir={kit.folder / name}",
                f"trainer.total_training_steps={STEPS}",
                f"cluster.start_timeout_s={START_S}",
                *_placement(kit),
                *_installed(kit),
                *overrides,
            ],
        )
    except NotRegistered as error:
        raise CheckSkipped(_what_is_missing(str(error))) from error


def _placement(kit: Context) -> list[str]:
    """Train on two devices where there are two, and generate on a third; with fewer, on one that is shared if it may.

    The overrides replace what the baseline says.
    """
    count = kit.platform.device_count()
    if count >= 3:
        actor, rollout = "0-1", "2"
    elif groups_per_device(kit.platform, 2) > 1:
        actor, rollout = ("0-1", "1") if count == 2 else ("0", "0")
    else:
        actor, rollout = "0", "1"
    return [f"cluster.component_placement.actor={actor}", f"cluster.component_placement.rollout={rollout}"]


def _installed(kit: Context) -> list[str]:
    """Name other engines and rollouts than the baseline's where only such are installed for this device."""
    if "baseline" in kit.options:
        return []
    load_plugins()
    backends = [str(key[1]) for key in ENGINES.keys() if isinstance(key, tuple) and key[0] == MODEL_TYPE]
    usable = [name for name in dict.fromkeys(backends) if EngineRegistry.explain(MODEL_TYPE, name).entry is not None]
    rollouts = [str(key) for key in ROLLOUTS.keys()]
    if not usable or not rollouts:
        what = "rollout backend" if usable else f"engine for {kit.platform_name}"
        raise CheckSkipped(_what_is_missing(f"no {what} is installed"))
    chosen = _named()
    strategy = chosen["strategy"] if chosen["strategy"] in usable else usable[0]
    rollout = chosen["rollout"] if chosen["rollout"] in rollouts else rollouts[0]
    return [f"actor.strategy={strategy}", f"rollout.name={rollout}"]


@cache
def _named() -> dict[str, str]:
    import yaml

    tree = yaml.safe_load(_data("rl_smoke.yaml").read_text(encoding="utf-8"))
    return {"strategy": tree["actor"]["strategy"], "rollout": tree["rollout"]["name"]}


def _what_is_missing(problem: str) -> str:
    command = _data("rl_smoke.install").read_text(encoding="utf-8").strip()
    return f"{problem.rstrip('.')}. These make it possible: `{command}`."


def _data(name: str) -> Path:
    return Path(str(resources.files("plugrl.testing.kit") / "data" / name))


# --------------------------------------------------------------------- running
def _session(kit: Context, config: RunConfig) -> Any:
    if "session" not in kit.cache:
        kit.cache["session"] = RaySession(
            config.cluster, load_plugins(), platform=kit.platform_name, store_bytes=STORE_BYTES,
            preload=preload_of(config),
        ).start()  # fmt: skip
    return kit.cache["session"]


def _run(kit: Context, config: RunConfig) -> Course:
    inputs, data = check_rl_inputs(config)
    session = _session(kit, config)
    with recorded(config, inputs.run_dir, inputs.resume_from, phase="rl") as tracker:
        plan = planned(config, data, session.device_count)
        tracker.start_phase("rl", plan.total_steps, step_of(inputs.resume_from))
        components = launch(session, config, rl_components(config), total_steps=plan.total_steps)
        try:
            assert inputs.reward is not None
            run = RlRun(config, components, data, inputs.processor, inputs.reward, tracker, inputs.store, plan)
            if inputs.resume_from is not None:
                run.resume(inputs.resume_from)
            before = _digests(run.actor)[0]
            train_grpo(run)
            after, rollout = _digests(run.actor)[0], _digests(run.rollout)
        finally:
            components.close()
    metrics = {int(row["step"]): _without_clocks(row) for row in inputs.run_dir.read_metrics() if row.get("step")}
    return Course(metrics, before, after, rollout)


def _digests(group: Any) -> list[Digests]:
    return group.group.execute("weight_digests").wait(group.timeout)


def _without_clocks(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "phase" and not name.startswith(_CLOCKS)}


# --------------------------------------------------------------------- comparing
def not_finite(metrics: dict[int, dict[str, float]]) -> list[str]:
    """Return ``step 2: actor/grad_norm`` for each metric that is no finite number."""
    return [f"step {step}: {name}" for step, row in metrics.items() for name, value in row.items()
            if not math.isfinite(value)]  # fmt: skip


def differences(got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names whose values are not equal to the last bit, with both values."""
    names = sorted(got.keys() | expected.keys())
    return [f"{name} ({got.get(name)} instead of {expected.get(name)})" for name in names
            if got.get(name) != expected.get(name)]  # fmt: skip
