"""Worker groups: calls, errors, deaths, deadlines, life cycle."""

import os
import signal
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from plugrl.errors import ConfigError, PlugRLError, WorkerDied, WorkerError, WorkerTimeout
from plugrl.platforms.devices import DeviceError
from plugrl.runtime import WorkerGroup, wait_all
from plugrl.runtime.process import is_alive, wait_gone

ECHO = "plugrl.testing.workers:EchoWorker"
COLLECTIVE = "plugrl.testing.workers:CollectiveWorker"
WAIT = 30.0


@pytest.fixture(scope="module")
def echo(ray_session):
    group = WorkerGroup(ray_session, ECHO, name="echo", devices=[0, 3], kwargs={"tag": "t"}, env={"PLUGRL_TEST": "yes"})
    yield group.wait_ready(120)
    group.close()


def test_results_come_in_rank_order_with_common_and_own_arguments(echo):
    handle = echo.execute("echo", 1, per_rank=[((10,), {"x": "a"}), ((11,), {"x": "b"})], x="common", y=2)
    first, second = handle.wait(WAIT)
    assert (first["rank"], first["args"], first["kwargs"], first["tag"]) == (0, (1, 10), {"x": "a", "y": 2}, "t")
    assert (second["rank"], second["args"], second["kwargs"]) == (1, (1, 11), {"x": "b", "y": 2})
    assert handle.wait(WAIT) == [first, second]


def test_a_call_may_go_to_some_ranks(echo):
    assert [row["rank"] for row in echo.execute("echo", ranks=[1]).wait(WAIT)] == [1]
    assert [row["rank"] for row in echo.execute("echo", ranks=[1, 0]).wait(WAIT)] == [1, 0]
    with pytest.raises(PlugRLError, match="1 argument sets for 2 ranks"):
        echo.execute("echo", per_rank=[((), {})])


def test_environment_threads_and_device_of_a_worker(echo):
    names = (
        "PLUGRL_TEST", "OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "GLOO_SOCKET_IFNAME", "PLUGRL_FINGERPRINT", "RANK",
        "WORLD_SIZE",
    )  # fmt: skip
    rows = echo.execute("environment", *names).wait(WAIT)
    assert [row["device"] for row in rows] == [0, 3]
    for row in rows:
        assert row["threads"] == 1
        assert row["env"]["PLUGRL_TEST"] == "yes"
        assert row["env"]["OMP_NUM_THREADS"] == "1"
        assert int(row["env"]["MALLOC_TRIM_THRESHOLD_"]) > 2**20
        assert row["env"]["PLUGRL_FINGERPRINT"]
        assert row["env"]["RANK"] is None and row["env"]["WORLD_SIZE"] is None


def test_an_error_names_group_rank_method_and_carries_the_remote_traceback(echo):
    with pytest.raises(WorkerError) as caught:
        echo.execute("fail").wait(WAIT)
    error = caught.value
    assert type(error) is WorkerError
    assert error.group == "echo" and error.rank in (0, 1) and error.pid > 0 and error.node
    assert "fail(): ValueError: wrong on rank" in str(error) and "device CPU-" in str(error)
    assert "raise ValueError(" in error.remote_traceback


def test_the_driver_goes_on_after_an_error(echo):
    handle = echo.execute("fail", "exit")
    for _ in range(2):
        with pytest.raises(WorkerError, match="SystemExit"):
            handle.wait(WAIT)
    assert len(echo.execute("echo").wait(WAIT)) == 2


def test_a_user_error_keeps_its_type_and_text(echo):
    with pytest.raises(ConfigError) as caught:
        echo.execute("fail", "config", ranks=[1]).wait(WAIT)
    assert str(caught.value) == "data.path: no such thing"
    assert "worker group 'echo' rank 1" in caught.value.__notes__[0]


def test_an_unknown_method_is_an_error(echo):
    with pytest.raises(WorkerError, match="has no attribute 'nothing'"):
        echo.execute("nothing").wait(WAIT)


def test_a_deadline_names_the_rank_and_shows_where_it_stands(echo):
    handle = echo.execute("sleep", per_rank=[((0.0,), {}), ((4.0,), {})])
    started = time.monotonic()
    with pytest.raises(WorkerTimeout) as caught:
        handle.wait(0.7)
    assert time.monotonic() - started < 2.0
    assert "worker group 'echo' rank 1 in sleep()" in str(caught.value)
    assert "in sleep" in caught.value.remote_traceback
    assert handle.wait(WAIT) == [0, 1]
    assert handle.done()


def test_every_node_can_be_asked(ray_session):
    assert ray_session.call_on_nodes(os.path.join, "x") == [os.path.join(ray_session.nodes[0].ip, "x")]


def test_names_devices_and_duplicates_are_checked(ray_session, echo):
    with pytest.raises(PlugRLError, match="is running already"):
        WorkerGroup(ray_session, ECHO, name="echo", devices=[0])
    with pytest.raises(PlugRLError, match="no name for a worker group"):
        WorkerGroup(ray_session, ECHO, name="a:b", devices=[0])
    with pytest.raises(PlugRLError, match="no device"):
        WorkerGroup(ray_session, ECHO, name="none", devices=[])
    with pytest.raises(DeviceError, match="Device 99 does not exist"):
        WorkerGroup(ray_session, ECHO, name="far", devices=[99])


def test_a_failing_setup_raises_and_leaves_the_name_free(ray_session):
    group = WorkerGroup(ray_session, "plugrl.testing.workers:FailingSetupWorker", name="bad", devices=[0])
    with pytest.raises(ConfigError, match="model.path: nothing there"):
        group.wait_ready(120)
    assert "bad" not in [other.name for other in ray_session.open_groups()]
    with pytest.raises(PlugRLError, match="is closed"):
        group.execute("echo")


@pytest.mark.slow
def test_a_kill_in_a_hanging_collective_is_named_and_the_name_can_be_used_again(ray_session):
    group = WorkerGroup(ray_session, COLLECTIVE, name="killed", devices=[0, 1]).wait_ready(120)
    generation = group.generation
    victim = group.known_processes()[1]
    other = group.known_processes()[0]
    # Rank 0 waits in the collective; rank 1 never gets there.
    handle = group.execute("sum_of_ranks", ranks=[0])
    time.sleep(0.5)
    started = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        handle.wait(60)
    assert time.monotonic() - started < 10.0
    error = caught.value
    assert (error.group, error.rank, error.pid, error.node) == ("killed", 1, victim.pid, victim.node_ip)
    assert "rank 1" in str(error) and "died: " in str(error)
    group.close()
    assert not wait_gone([(other.pid, other.started)], 5)

    again = WorkerGroup(ray_session, COLLECTIVE, name="killed", devices=[0, 1]).wait_ready(120)
    assert again.generation == generation + 1
    assert again.execute("sum_of_ranks").wait(WAIT) == [3.0, 3.0]
    # A rank that raises does not wait for the one that hangs in the collective.
    started = time.monotonic()
    with pytest.raises(WorkerError, match="ValueError: one rank fails"):
        again.execute("fail_or_reduce", 1).wait(WAIT)
    again.close()
    assert time.monotonic() - started < 10.0


def test_a_death_in_another_group_ends_the_wait_with_the_last_words(ray_session, echo):
    group = WorkerGroup(ray_session, ECHO, name="mortal", devices=[0]).wait_ready(120)
    pid = group.known_processes()[0].pid
    long = echo.execute("sleep", 3.0)
    group.execute("die")
    with pytest.raises(WorkerDied) as caught:
        wait_all([long])
    assert (caught.value.group, caught.value.pid) == ("mortal", pid)
    assert "the last word" in str(caught.value)
    assert not is_alive(pid)
    group.close()
    assert long.group is echo
    echo.execute("echo").wait(WAIT)
