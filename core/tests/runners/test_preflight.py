"""What is refused before anything is written or started."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.config.schema import RunConfig
from plugrl.errors import CheckpointError, ConfigError, MissingDependency, UserError
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import hooks, load_plugins
from plugrl.plugins.hookspecs import Diagnostic, hookimpl
from plugrl.runners import preflight as preflight_module
from plugrl.runners.preflight import check_shared_folder, preflight

BOTH = ("actor", "rollout")


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """Run on the processor, whatever the machine has."""
    with use_platform(CpuPlatform()):
        yield


def config(**sections: dict[str, Any]) -> RunConfig:
    """A configuration of the given sections."""
    values: dict[str, Any] = {"algorithm": {"adv_estimator": "grpo"}, "trainer": {"logger": ["console"]}}
    for name, keys in sections.items():
        values.setdefault(name, {}).update(keys)
    return RunConfig.model_validate(values)


def test_a_sound_configuration_passes() -> None:
    for task in ("train", "sft", "eval"):
        preflight(config(), task, BOTH)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"algorithm": {"options": {"epsilom": 1}}}, r"^algorithm\.options: .*grpo.*epsilom.*Did you mean .epsilon"),
        ({"algorithm": {"options": {"gamma": 0.9}}}, r"^algorithm\.options\.gamma: is given by the run"),
        (
            {"actor": {"policy_loss": {"loss_mode": "clip_cov", "options": {"clip_cov_ration": 1}}}},
            r"^actor\.policy_loss\.options: .*clip_cov_ration",
        ),
        ({"cluster": {"component_placement": {"actor": "0-99"}}}, r"^cluster\.component_placement\.actor: .*99"),
    ],
)
def test_what_does_not_fit_is_named_by_its_key(sections: dict[str, dict[str, Any]], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        preflight(config(**sections), "train", BOTH)


@pytest.mark.parametrize(
    ("task", "component", "sections"),
    [
        ("train", "ref", {"data": {"train_batch_size": 1}}),
        ("train", "critic", {"critic": {"ppo_mini_batch_size": 1}}),
        ("train", "actor", {"sft": {"before_rl": True, "train_batch_size": 2}}),
        ("sft", "actor", {"sft": {"train_batch_size": 2}}),
    ],
)
def test_every_rank_gets_a_row(
    task: Any, component: str, sections: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUGRL_CPU_DEVICES", "4")
    sections = {**sections, "rollout": {"n": 2}, "cluster": {"component_placement": {component: "0-2"}}}
    with pytest.raises(
        ConfigError, match=rf"^cluster\.component_placement: 3 ranks of {component} cannot share 2 rows"
    ):
        preflight(config(**sections), task, ("actor", "rollout", component))  # type: ignore[arg-type]


def test_a_logger_without_its_package_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependency, match=r"^trainer\.logger: .*pip install wandb"):
        preflight(config(trainer={"logger": ["wandb"]}), "train", BOTH)
    preflight(config(trainer={"logger": ["wandb"]}), "eval", ("rollout",))


def test_plugins_may_warn_of_a_configuration_or_refuse_it(caplog: pytest.LogCaptureFixture) -> None:
    said = [Diagnostic(message="slow on this chip")]
    module = ModuleType("acme_hooks")
    module.on_config = hookimpl(lambda config: list(said))  # type: ignore[attr-defined]
    with hooks.isolated(), caplog.at_level(logging.WARNING):
        hooks.register("acme", module)
        preflight(config(), "train", BOTH)
        assert "slow on this chip" in caplog.text
        said.append(Diagnostic(message="rollout.n: the chip takes 8 at most", fatal=True))
        with pytest.raises(ConfigError, match=r"^rollout\.n: the chip takes 8 at most$"):
            preflight(config(), "train", BOTH)


class Exclusive(CpuPlatform):
    """A platform whose devices belong to one process each."""

    def supports_colocated_worker_groups(self) -> bool:
        """Say no."""
        return False


def test_components_do_not_share_a_device_that_one_process_owns() -> None:
    with use_platform(Exclusive()):
        with pytest.raises(ConfigError, match=r"actor, rollout are all placed on device 0"):
            preflight(config(), "train", BOTH)
        preflight(config(cluster={"component_placement": {"actor": 0, "rollout": 1}}), "train", BOTH)


class Nodes:
    """A session of so many nodes, the last of which sees another file system."""

    def __init__(self, count: int, blind: bool = False) -> None:
        self.nodes = [SimpleNamespace(ip=f"10.0.0.{index}") for index in range(count)]
        self.blind = blind

    def call_on_nodes(self, function: Any, probe: str) -> list[Any]:
        """Call here for every node; the blind one looks elsewhere."""
        paths = [probe] * len(self.nodes)
        if self.blind:
            paths[-1] = "/nowhere/.shared-probe"
        return [function(node.ip, path) for node, path in zip(self.nodes, paths, strict=True)]


def test_every_node_must_see_the_folder_of_the_run(tmp_path: Path) -> None:
    session: Any = Nodes(1)
    check_shared_folder(session, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "one node needs no probe"
    session = Nodes(2)
    check_shared_folder(session, tmp_path / "run")
    session = Nodes(2, blind=True)
    with pytest.raises(CheckpointError, match=r"Node 10\.0\.0\.1 does not see .*trainer\.default_local_dir"):
        check_shared_folder(session, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir()), "the probe is removed"


def test_every_engine_says_what_it_cannot_do_with_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugins(quiet=True)
    asked: list[tuple[Any, int]] = []

    class Particular:
        """An engine that objects to the number of its ranks."""

        @classmethod
        def problems(cls, section: Any, optim: Any, checkpoint: Any, world_size: int) -> Iterator[str]:
            asked.append((optim, world_size))
            yield f"parallelism.dp_shard: {world_size} ranks are too many"
            yield "checkpoint_format: unknown to me"

    monkeypatch.setattr(preflight_module.EngineRegistry, "get_engine_cls", lambda *args, **kwargs: Particular)
    monkeypatch.setattr(preflight_module, "engine_section", lambda section, kind: None)
    given = config(sft={"optim": {"lr": 0.5}}, algorithm={"use_kl_in_reward": True})
    with pytest.raises(ConfigError) as caught:
        preflight_module.check_engines(given, {"actor": 4, "rollout": 2, "ref": 2}, given.sft.optim)
    assert str(caught.value).splitlines() == [
        "actor: parallelism.dp_shard: 4 ranks are too many",
        "actor: checkpoint_format: unknown to me",
        "ref: parallelism.dp_shard: 2 ranks are too many",
        "ref: checkpoint_format: unknown to me",
    ]
    assert asked == [(given.sft.optim, 4), (None, 2)]
