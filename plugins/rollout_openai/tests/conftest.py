"""Servers and backends for the tests of this package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from plugrl.rollouts.base import RolloutPlace
from plugrl_rollout_openai.server_backend import ServerRolloutBackend
from plugrl_rollout_openai.testing import scripted_weights as tensors

from .fake_server import FakeServer

QUICK = {"retry_delay_s": 0.01, "idle_timeout_s": 0.5, "sample_timeout_s": 60.0, "control_timeout_s": 60.0}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tensors of the scripted model."""
    folder = tmp_path_factory.mktemp("model")
    save_file(tensors(0.0), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "scripted", "tie_word_embeddings": True}))
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    """A function that starts a server; all are closed in the end."""
    servers: list[FakeServer] = []

    def start(*arguments: Any, **named: Any) -> FakeServer:
        servers.append(FakeServer(*arguments, **named))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def drive(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., ServerRolloutBackend]]:
    """A function that starts a backend of some servers; all are closed in the end."""
    backends: list[ServerRolloutBackend] = []

    def start(*servers: FakeServer, place: RolloutPlace | None = None, **options: Any) -> ServerRolloutBackend:
        given = {**QUICK, "urls": [server.url for server in servers], "weights_dir": str(tmp_path / "w"), **options}
        backend = ServerRolloutBackend({"path": str(model_folder)}, {"options": given})
        backend.place = place or RolloutPlace()
        backends.append(backend)
        backend.initialize()
        return backend

    yield start
    for backend in backends:
        backend.close()


@pytest.fixture(params=["vllm", "sglang"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Each kind of server in turn."""
    return str(request.param)
