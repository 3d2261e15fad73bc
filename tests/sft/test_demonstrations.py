"""One file for demonstrations and for the policy that is cloned from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sft_ranks
import yaml

from plugrl.config import load_config
from plugrl.data.lerobot import DatasetInfo
from plugrl.errors import ConfigError, DataError
from plugrl.runners.demos import RECORD_FILE, run_demos
from plugrl.testing.ranks import RankPool
from plugrl.workers.demonstrations import (
    check_statistics,
    demonstration_samples,
    save_statistics,
    with_statistics,
    with_statistics_in_full,
)

from .conftest import free_port

pytest.importorskip("plugrl_envs_tabletop")
pytest.importorskip("plugrl_models_policy")


def written(folder: Path, **changes: Any) -> Path:
    """Write the configuration of a small run."""
    values: dict[str, Any] = {
        "env": {
            "train": {"env_type": "tabletop", "total_num_envs": 4, "init_params": {"image_size": 16}},
            "demos": {"init_params": {"action_noise": 0.3}},
        },
        "model": {
            "model_type": "cnn_policy", "image_shape": [16, 16], "channels": [8, 8], "state_dim": 5, "action_dim": 2,
            "num_action_chunks": 2, "hidden_sizes": [32], "precision": "fp32",
        },
        "demos": {"episodes": 10, "name": "table"},
        "sft": {"batch_size": 16, "total_steps": 20, "optim": {"lr": 3e-3}},
        "trainer": {"default_local_dir": str(folder / "run"), "logger": ["jsonl"]},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values | changes))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run is, with its demonstrations."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("cloning")
    config = load_config(written(folder), task="demos")
    told: list[str] = []
    found = run_demos(config, told.append)
    assert found.tally.kept == 10 and told[-1].startswith("demonstrations 10/10")
    return folder


def test_demonstrations_say_where_they_come_from(folder: Path) -> None:
    root = folder / "run-demos"
    info, record = DatasetInfo.load(root), json.loads((root / RECORD_FILE).read_text())
    assert len(info.episodes) == 10 == len(record["seeds"]) and record["attempts"] == 10 + record["failed"]
    assert min(record["seeds"]) >= 2**33, "the seed of an evaluation was used"
    settings = record["settings"]["init_params"]
    assert (settings["image_size"], settings["action_noise"]) == (16, 0.3), "env.demos does not follow env.train"
    assert set(info.policy_features) == {"observation.images.main", "observation.state", "action"}
    assert list(json.loads((root / "dataset_statistics.json").read_text())) == ["table"]
    with pytest.raises(DataError, match=r"demos.path: .*run-demos exists already"):
        run_demos(load_config(folder / "run.yaml", task="demos"))


@pytest.mark.slow
def test_a_policy_is_cloned_by_the_same_file(folder: Path, ranks: RankPool) -> None:
    config = load_config(folder / "run.yaml", task="sft")
    assert config.data.source == "lerobot" and config.data.source_options["root"] == str(folder / "run-demos")
    arguments = [str(folder / "run.yaml")]
    ranks.run(sft_ranks.train, free_port(), arguments, world=1, process_group=False, timeout_s=100)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    losses = [row["sft/loss"] for row in rows if "sft/loss" in row]
    assert len(losses) == 20 and losses[-1] < 0.8 * losses[0], f"nothing was learnt: {losses[0]} -> {losses[-1]}"
    weights = folder / "run/checkpoints/last/pretrained_model"
    from plugrl.models import get_model

    policy = get_model({**config.model.model_dump(exclude_unset=True), "path": str(weights)})
    stored = json.loads((folder / "run-demos/dataset_statistics.json").read_text())["table"]["proprio"]["mean"]
    assert policy.states.state_mean.tolist() == pytest.approx(stored, abs=1e-5), "the scale of the data was not kept"
    changed = json.loads((weights / "dataset_statistics.json").read_text())
    changed["table"]["action"]["q99"][0] *= 2
    (folder / "other.json").write_text(json.dumps(changed))
    again = [*arguments, "trainer.resume=auto", "sft.total_steps=25", f"model.norm_stats={folder / 'other.json'}"]
    (told,) = ranks.run(sft_ranks.train, free_port(), again, True, world=1, process_group=False, timeout_s=100)
    assert "ConfigError: model.norm_stats: " in told["error"] and "action.q99[0] was" in told["error"], told
    ranks.run(sft_ranks.train, free_port(), again[:-1], world=1, process_group=False, timeout_s=100)


def test_a_policy_goes_on_only_with_the_statistics_that_it_learnt_with(folder: Path, tmp_path: Path) -> None:
    config = load_config(folder / "run.yaml", task="sft")
    data = demonstration_samples(config)
    filled = with_statistics(config, data).model
    weights = tmp_path / "checkpoint" / "pretrained_model"
    weights.mkdir(parents=True)
    values = with_statistics_in_full(config.model_dump(mode="json"), filled)
    (weights / "train_config.json").write_text(json.dumps(values))
    save_statistics(values, weights)
    arguments = (weights.parent, weights.name, "train_config.json")
    check_statistics(filled, *arguments)
    stats = json.loads(json.dumps(filled.norm_stats))
    stats["table"]["proprio"]["mean"][1] += 0.5
    other = filled.model_copy(update={"norm_stats": stats})
    told = r"model.norm_stats: .*proprio.mean\[1\] was .*dataset_statistics.json"
    with pytest.raises(ConfigError, match=told) as error:
        check_statistics(other, *arguments)
    given = re.search(r"model.norm_stats=(\S+) model.unnorm_key=(\S+);", str(error.value))
    assert given is not None, "the message gives the keys to go on with"
    check_statistics(filled.model_copy(update={"norm_stats": given[1], "unnorm_key": given[2]}), *arguments)
    (weights / "train_config.json").write_text(json.dumps(config.model_dump(mode="json")))
    check_statistics(other, *arguments)  # a checkpoint that names none


def test_what_cannot_be_collected_is_said_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env.demos: must be given to collect demonstrations, or env.train"):
        load_config(written(tmp_path, env={}), task="demos")
    twice = {"demos": {"env_type": "tabletop", "init_params": {"num_envs": 3}}}
    with pytest.raises(ConfigError, match="env.demos.init_params.num_envs: is set by env.demos.total_num_envs"):
        load_config(written(tmp_path, env=twice), task="demos")
    with pytest.raises(ConfigError, match="env.demos.init_params: tasks must be different names"):
        unknown = {"demos": {"env_type": "tabletop", "init_params": {"tasks": ["fly"]}}}
        load_config(written(tmp_path, env=unknown), task="demos")
