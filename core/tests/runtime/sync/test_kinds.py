"""What holds for every kind of weight syncer, with the ends in one process."""

import os

import pytest

pytest.importorskip("torch")

import torch

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.errors import NotRegistered, PluginError, WeightSyncError
from plugrl.runtime.sync import TensorSpec, WeightRoute, check_keys, get_weight_syncer, register_weight_syncer
from plugrl.runtime.sync.route import choose

KINDS = ("bucket", "patch", "handle")


@pytest.mark.parametrize("receivers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_version_arrives_bit_for_bit_at_every_receiver(wire, random_state, kind, receivers):
    line = wire(kind, receivers)
    for version in (1, 2, 5, 6):
        line.deliver(random_state(version), version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_transfer_leaves_all_receivers_at_the_version_before(wire, random_state, kind):
    line = wire(kind)
    before = random_state(1)
    line.deliver(before, 1)
    error, errors = line.transfer(random_state(2), 2, broken_after=6)
    assert isinstance(error, ValueError)
    assert all("The sender gave up: ValueError: the stream broke" in str(item) for item in errors), errors
    assert all(model.version == 1 and model.has(before) for model in line.models)
    line.deliver(random_state(2), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_that_fails_is_one_receivers_own_and_its_old_weights_are_never_overwritten(wire, random_state, kind):
    line = wire(kind)
    line.deliver(random_state(1), 1)
    first = line.models[0]
    old = {name: tensor.clone() for name, tensor in first.state.items()}
    first.fails = True
    report, errors = line.transfer(random_state(2), 2)
    assert report.version == 2 and isinstance(errors[0], MemoryError) and errors[1] is None
    assert [receiver.version for receiver in line.receivers] == [1, 2]
    if kind != "patch":  # A patch changes the one snapshot, of which the model's parameters may be views.
        assert first.has(old)
    first.fails = False
    for version in (3, 4, 5):
        line.deliver(random_state(version), version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_was_launched_again_gets_everything(wire, random_state, kind):
    line = wire(kind)
    line.deliver(random_state(1), 1)
    line.replace_receiver(1)
    report = line.deliver(random_state(2), 2)
    assert report.full
    line.deliver(random_state(3), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_never_fall_and_must_agree(wire, random_state, kind):
    line = wire(kind, 1)
    line.deliver(random_state(3), 3)
    with pytest.raises(WeightSyncError, match="versions never fall"):
        line.sender.send(random_state(2).items(), 2)
    line.receivers[0].apply, real = (lambda version, load: real(9, load)), line.receivers[0].apply
    error, errors = line.transfer(random_state(4), 4)
    assert "version 9 were expected, 4 came" in str(errors[0]) and isinstance(error, WeightSyncError)
    assert line.receivers[0].version == 3
    line.receivers[0].apply = real
    line.deliver(random_state(4), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_receiver_is_named_within_the_deadline(wire, random_state, kind):
    line = wire(kind, 2, timeout_s=0.3)
    with pytest.raises(WeightSyncError, match="Receiver 0, 1 did not connect within 0.3 s"):
        line.sender.send(random_state(1).items(), 1)
    with pytest.raises(WeightSyncError, match="sent nothing for|no sender within"):
        line.receivers[0].apply(1, line.models[0].load)


@pytest.mark.parametrize("kind", KINDS)
def test_only_floats_are_cast(wire, random_state, kind):
    line = wire(kind, 1, dtype="bfloat16")
    state = random_state(1)
    line.transfer(state, 1)
    expected = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in state.items()}
    assert line.models[0].has(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_tensors_are_sent_once_and_again_to_who_lacks_them(wire, random_state, kind):
    line = wire(kind)
    state, frozen = random_state(1), frozenset({"large", "half"})

    def step(seed: int) -> dict:
        return {**random_state(seed), "large": state["large"], "half": state["half"]}

    assert line.deliver(state, 1, frozen).tensors == len(state)
    line.deliver(step(2), 2, frozen)  # The second image of a handle is filled here.
    assert line.deliver(step(3), 3, frozen).tensors <= len(state) - 2
    line.replace_receiver(0)
    line.deliver(step(4), 4, frozen)
    changed = {**step(5), "large": random_state(9)["large"]}
    line.deliver(changed, 5)  # Without the promise they are sent again, as after a checkpoint was loaded.


def test_tensors_that_come_at_once_save_a_copy_and_are_the_same(wire, random_state):
    line = wire("bucket", 2, bucket={"staged": False})
    for version in (1, 2):
        line.deliver(random_state(version), version)


def test_a_load_that_breaks_off_in_the_middle_of_a_stream_fails_the_transfer(wire, random_state):
    line = wire("bucket", 2, bucket={"staged": False})
    line.models[0].fails = True
    error, errors = line.transfer(random_state(1), 1)
    assert isinstance(error, WeightSyncError) and all(errors)
    line.models[0].fails = False
    line.deliver(random_state(1), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_open(wire, random_state, kind, tmp_path):
    for round_number in range(9):
        line = wire(kind)
        for version in range(4):
            line.deliver(random_state(version), version)
        line.close()
        line.models.clear()
        if round_number == 0:
            before = len(os.listdir("/proc/self/fd"))
    # The Ray session of other tests may open a few meanwhile; a leak would be one for each round at least.
    assert len(os.listdir("/proc/self/fd")) < before + 8
    assert not list(tmp_path.rglob("*.sock"))


def test_tensors_of_one_side_are_named_before_anything_is_sent():
    sent = [TensorSpec(name, "float32", (2,)) for name in ("a", "b", "c")]
    wanted = [TensorSpec("b", "bfloat16", (2,)), TensorSpec("c", "float32", (3,)), TensorSpec("d", "float32", (1,))]
    with pytest.raises(WeightSyncError) as caught:
        check_keys(sent, wanted, "rollout rank 1")
    assert str(caught.value) == (
        "The weights do not fit, nothing was sent: only the sender has a, which rollout rank 1 lacks; only rollout "
        "rank 1 has d, which the sender lacks; c ([2] against [3]) differ in shape."
    )
    check_keys(sent[1:2], wanted[:1], "rollout rank 1")  # Another type alone is no mistake.


def test_auto_is_handle_on_one_node_and_bucket_elsewhere():
    route = WeightRoute(name="r", directory="", receivers=3, options=WeightSyncConfig())
    assert choose(route)[0] == "handle"
    kind, reason = choose(WeightRoute(name="r", directory="", receivers=3, remote=(1, 2)))
    assert kind == "bucket" and "rank 1, 2" in reason
    remote = WeightRoute(name="r", directory="", receivers=3, remote=(1,))
    assert "receivers 1 do not share" in get_weight_syncer("handle").problem(remote)


def test_unknown_kinds_are_refused_with_candidates_and_plugins_may_add_some():
    with pytest.raises(NotRegistered, match='Did you mean "patch"'):
        get_weight_syncer("patches")
    with pytest.raises(PluginError, match="does not implement receiver, sender"):
        register_weight_syncer("mine")(type("Mine", (get_weight_syncer("patch").__mro__[1],), {}))
    with pytest.raises(PluginError, match="chooses among those"):
        register_weight_syncer("auto")(get_weight_syncer("patch"))
