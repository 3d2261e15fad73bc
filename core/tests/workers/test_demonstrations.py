"""What a policy for environments learns from: rows of a data set as observations, with its own scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

from plugrl.config.schema import DataConfig, EmbodiedModelConfig, RunConfig  # noqa: E402
from plugrl.data.lerobot.writer import DatasetWriter  # noqa: E402
from plugrl.errors import ConfigError  # noqa: E402
from plugrl.models.base import BasePolicy  # noqa: E402
from plugrl.models.norm_stats import statistics_of  # noqa: E402
from plugrl.workers.demonstrations import (  # noqa: E402
    DemonstrationInputs,
    acts_in_environments,
    demonstration_samples,
    with_statistics,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two episodes of 4 and 3 frames, whose actions count on."""
    root = tmp_path_factory.mktemp("demos") / "table"
    with DatasetWriter(root, 10, "arm") as writer:
        for start, length in ((0, 4), (100, 3)):
            numbers = numpy.arange(start, start + length, dtype=numpy.float32)
            writer.add(
                {"observation.state": numpy.stack([numbers, -numbers], 1), "action": numpy.stack([numbers * 2] * 2, 1)},
                f"from {start}",
            )
        writer.write_json("dataset_statistics.json", {"tabletop": {"action": {"mask": [True, False]}}})
    return root


def config(folder: Path, **model) -> RunConfig:
    section = EmbodiedModelConfig(model_type="learner", **{"action_dim": 2, "num_action_chunks": 3, **model})
    options = {"root": str(folder), "val_episodes": [1]}
    return RunConfig(model=section, data=DataConfig(source="lerobot", source_options=options))


class Learner(BasePolicy):
    """Notes what it is given."""

    def default_forward(self, forward_inputs, **kwargs):
        return {}

    def sft_forward(self, forward_inputs, **kwargs):
        return {}


def test_rows_become_observations_and_chunks_with_what_lies_behind_the_end_masked(folder):
    splits = demonstration_samples(config(folder))
    inputs = DemonstrationInputs(Learner(), splits.train).before(splits.train.batch([0, 2]))
    assert inputs["states"].tolist() == [[0, 0], [2, -2]]
    assert inputs["action"][:, :, 0].tolist() == [[0, 2, 4], [4, 6, 6]]
    assert inputs["action_mask"].tolist() == [[True] * 3, [True, True, False]]

    class Speaking(Learner):
        def sft_inputs(self, env_obs, actions):
            return {"texts": torch.tensor([len(text) for text in env_obs["task_descriptions"]]), "chunk": actions}

    told = DemonstrationInputs(Speaking(), splits.train).before(splits.train.batch([0]))
    assert told["texts"].tolist() == [len("from 0")] and told["chunk"].shape == (1, 3, 2)


def test_statistics_are_those_of_the_training_episodes_under_the_name_of_the_data(folder):
    run = config(folder)
    found = with_statistics(run, demonstration_samples(run)).model
    assert found.unnorm_key == "tabletop"
    entry = statistics_of(found.norm_stats, "tabletop")
    assert entry["action"]["max"] == [6, 6], "a held-out episode counts"
    assert entry["action"]["mask"] == [True, False] and entry["proprio"]["mean"] == [1.5, -1.5]
    assert (entry["num_transitions"], entry["num_trajectories"]) == (4, 1)
    named = config(folder, unnorm_key="mine")
    assert list(with_statistics(named, demonstration_samples(named)).model.norm_stats) == ["mine"]
    given = config(folder, norm_stats={"a": {}})
    assert with_statistics(given, demonstration_samples(given)) is given, "given statistics are replaced"
    continued = config(folder, path="/weights")
    assert with_statistics(continued, demonstration_samples(continued)) is continued, "the weights have their own"


def test_actions_that_do_not_fit_and_texts_are_refused(folder):
    with pytest.raises(ConfigError, match=r"model.action_dim: 7, but the actions .* shape \[2\]"):
        demonstration_samples(config(folder, action_dim=7))
    texts = config(folder).model_copy(update={"data": DataConfig(source="arithmetic")})
    with pytest.raises(ConfigError, match="data.source: arithmetic has texts"):
        demonstration_samples(texts)
    assert acts_in_environments(texts) and not acts_in_environments(RunConfig())


def test_statistics_are_found_by_name_or_the_names_are_listed(tmp_path):
    stats = {"bridge": {"action": {}}, "table": {"action": {"mean": [1]}}}
    path = tmp_path / "dataset_statistics.json"
    path.write_text(json.dumps(stats))
    assert statistics_of(str(path), "table") == stats["table"]
    assert statistics_of({"only": {"action": {}}}, None) == {"action": {}} and statistics_of(None, "x") is None
    with pytest.raises(ConfigError, match='no statistics of "tabel". Did you mean "table"'):
        statistics_of(stats, "tabel")
    with pytest.raises(ConfigError, match="unnorm_key: there are statistics of several .* bridge"):
        statistics_of(stats, None)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="must hold statistics by the name"):
        statistics_of(str(path), None)


def test_a_policy_on_states_takes_their_scale_from_the_data():
    policies = pytest.importorskip("plugrl_models_policy.policy")
    stats = {"table": {"proprio": {"mean": [10.0, 20.0], "std": [2.0, 4.0]}, "action": {}}}
    keys = {"state_dim": 2, "action_dim": 2, "num_action_chunks": 3, "hidden_sizes": (8,), "norm_stats": stats}
    policy = policies.build_mlp_policy(keys, torch.float32)
    assert policy.features({"states": torch.tensor([[12.0, 16.0]])}).tolist() == [[1.0, -1.0]]
    assert "norm_stats" not in policy.config.shape()
    mask = torch.tensor([[True, False, False]])
    inputs = {"states": torch.zeros(1, 2), "action": torch.zeros(1, 3, 2), "action_mask": mask}
    near = policy(forward_type="sft", forward_inputs=inputs)["losses"]
    inputs["action"][:, 1:] = 50.0
    assert torch.equal(policy(forward_type="sft", forward_inputs=inputs)["losses"], near), "masked actions are learnt"
    with pytest.raises(ConfigError, match="model.state_dim: 3, but model.norm_stats are those of 2"):
        policies.build_mlp_policy({**keys, "state_dim": 3}, torch.float32)
