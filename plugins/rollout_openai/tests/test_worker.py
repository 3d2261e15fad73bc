"""The rollout worker with this backend: weights that the syncers bring reach the server, and samples their version."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from plugrl.config.schema import ModelConfig, RolloutConfig
from plugrl.plugins import load_plugins
from plugrl.rollouts.base import SamplingParams
from plugrl.runtime.sync import WeightRoute, WeightSender
from plugrl.workers.rollout import RolloutWorker
from plugrl_rollout_openai.engine import mixed_seed
from plugrl_rollout_openai.testing import scripted, scripted_weights

from .conftest import QUICK


@pytest.mark.parametrize("kind", ["handle", "bucket"])
def test_weights_come_by_each_syncer_and_samples_go_back_with_their_version(
    serve, model_folder, tmp_path, dialect, kind
) -> None:
    load_plugins()
    server = serve(dialect)
    options = {**QUICK, "urls": [server.url], "weights_dir": str(tmp_path / "w")}
    worker = RolloutWorker(ModelConfig(path=str(model_folder)), RolloutConfig(name="openai", options=options))
    worker.context = SimpleNamespace(rank=0, world_size=1, device=None, group="rollout", generation=1)
    worker.setup()
    assert worker.engine_version().startswith(dialect)
    route = WeightRoute(name="r", directory=str(tmp_path), receivers=1, kind=kind, timeout_s=60.0)
    sender = WeightSender(route)
    for version, weight in ((1, 0.5), (2, 0.25), (3, 0.75)):
        sending = threading.Thread(target=sender.send, args=(list(scripted_weights(weight).items()), version))
        sending.start()
        worker.receive_weights(route, version)
        sending.join(60)
        (done,) = worker.generate([[4, 5]], SamplingParams(max_new_tokens=6), [9]).unpack()
        assert done.weight_version == worker.weight_version() == version
        assert list(done.tokens) == scripted((4, 5), mixed_seed(9, 0), weight, 6)[0]
    assert worker.describe_weights()[0] is not None and worker.memory_mib() == (1, 1)
    sender.close()
    worker._receiver.close()
    worker.backend.close()
