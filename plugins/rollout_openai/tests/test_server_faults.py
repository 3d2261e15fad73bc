"""The fault matrix: whatever servers do, no sample is lost or mixed, and each carries the version that drew it."""

from __future__ import annotations

import threading
import time

import pytest

from plugrl.errors import PlugRLError, RuntimeTimeout, WeightSyncError
from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_openai.engine import EngineRefusal
from plugrl_rollout_openai.testing import scripted_weights as tensors

from .fake_server import FakeServer
from .test_server_backend import PARAMS, PROMPTS, SEEDS, check

FAULTS = ("busy", "slow", "half", "error", "ends", "gives_up", "mixed", "restarts")
"""503; no token; cut within a line; an error event; [DONE] without an end; aborted; other weights; gone and back."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_the_way_costs_a_try_and_nothing_else(serve, drive, dialect, fault) -> None:
    server = serve(dialect)
    backend = drive(server)
    backend.load_weights(iter(tensors(0.5).items()), 7)
    server.faults = [None, fault, None, fault]
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 7)
    assert backend._drawer.retries >= 1
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 7)


def test_a_server_that_refuses_connections_for_a_while_loses_nothing(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    server.stop()
    timer = threading.Timer(0.3, server.start)
    timer.start()
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    timer.join()


def test_another_server_takes_over_from_one_that_is_gone(serve, drive) -> None:
    gone, there = serve(), serve()
    backend = drive(gone, there)
    backend.load_weights(iter(tensors(0.5).items()), 1)
    gone.stop()
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 1)
    patient, backend.options = backend.options, backend.options.model_copy(update={"control_timeout_s": 1.0})
    with pytest.raises(WeightSyncError, match=f"version 2 did not load.*{gone.url}"):
        backend.adopt_weights(tensors(0.75), 2)
    with pytest.raises(WeightSyncError, match="half-way"):  # One has the new weights, one has not.
        backend.generate(PROMPTS, PARAMS, SEEDS)
    gone.start()
    backend.options = patient
    backend.adopt_weights(tensors(0.75), 2)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.75, 2)


def test_a_server_that_restarts_between_two_calls_gets_its_weights_again(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    backend.load_weights(iter(tensors(0.5).items()), 4)
    server.restart()
    assert server.state.label == "default"
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 4)
    server.restart()
    backend.adopt_weights(tensors(0.75), 5)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.75, 5)


def test_weights_that_another_client_writes_are_noticed(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    backend.load_weights(iter(tensors(0.5).items()), 4)

    def intrude(served: FakeServer, count: int) -> None:
        if count == 3:
            served.state.label, served.model.weight = "4", 0.9  # The same number of version, by another run.

    server.on_sample = intrude
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 4)


@pytest.mark.parametrize("fault", ["error", "lost_answer"])
def test_an_update_that_fails_once_is_done_again(serve, drive, dialect, fault) -> None:
    server = serve(dialect)
    backend = drive(server)
    for place in range(4):
        server.control_faults = [None] * place + [fault]
        backend.load_weights(iter(tensors(place / 10).items()), place + 1)
        check(backend.generate(PROMPTS, PARAMS, SEEDS), place / 10, place + 1)


def test_a_server_that_says_yes_and_keeps_its_weights_is_caught(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server, control_timeout_s=1.0)
    server.control_faults = ["ignored"] * 1000
    with pytest.raises(WeightSyncError, match=r"its weights are \w+\.0 after they were replaced by \w+\.1"):
        backend.load_weights(iter(tensors(0.5).items()), 1)
    with pytest.raises(WeightSyncError, match="version 1 failed half-way"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    server.control_faults, backend.options = [], backend.options.model_copy(update={"control_timeout_s": 60.0})
    backend.load_weights(iter(tensors(0.5).items()), 2)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 2)


def test_an_update_that_the_server_reports_as_failed_is_no_success(serve, drive) -> None:
    server = serve("sglang")
    backend = drive(server, control_timeout_s=1.0)
    server.control_faults = ["unsuccessful"] * 1000
    with pytest.raises(WeightSyncError, match="told so"):
        backend.load_weights(iter(tensors(0.5).items()), 1)


def test_a_deadline_ends_it_and_tells_what_happened(serve, drive) -> None:
    server = serve()
    backend = drive(server, sample_timeout_s=1.0, idle_timeout_s=0.2)
    server.faults = ["busy", "slow"] * 100
    began = time.monotonic()
    with pytest.raises(RuntimeTimeout, match=r"not there within 1 s .*tries failed.*(answers 503|no token came)"):
        backend.generate(PROMPTS[:1], SamplingParams(max_new_tokens=4), [1])
    assert time.monotonic() - began < 20
    server.faults, backend._drawer._options = [], backend.options.model_copy(update={"sample_timeout_s": 60.0})
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)  # The backend is of use again.


def test_what_a_server_refuses_is_told_at_once(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    server.faults = ["refuses"]
    with pytest.raises(EngineRefusal, match="answers 400.*prompt too long"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    assert backend._drawer.retries == 0


def test_a_broken_sample_may_go_on_where_it_broke(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server, continue_broken=True)
    server.faults = ["error"]
    (done,) = backend.generate(PROMPTS[:1], SamplingParams(max_new_tokens=8), SEEDS[:1])
    assert len(done.tokens) == 8 and done.weight_version == 0
    rest = server.bodies[-1]
    assert rest.get("prompt", rest.get("input_ids")) == [*PROMPTS[0], *done.tokens[:3]]


def test_nothing_runs_on_after_close(serve, drive) -> None:
    server = serve()
    backend = drive(server)
    server.faults = ["slow"] * 6
    thread = threading.Thread(target=_swallow, args=(backend,))
    thread.start()
    time.sleep(0.2)
    backend.abort()
    thread.join(10)
    backend.close()
    assert not thread.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ServerRolloutBackend")]


def _swallow(backend) -> None:
    try:
        backend.generate(PROMPTS, PARAMS, SEEDS)
    except PlugRLError:
        pass
