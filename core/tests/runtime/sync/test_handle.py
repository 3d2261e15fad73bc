"""Handles: one copy for all receivers, none of which can change it for another, and a seal on each version."""

import mmap
import os
import threading

import pytest

pytest.importorskip("torch")

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync import WeightSource, copier, memory, specs_of
from plugrl.runtime.sync.copier import Copier
from plugrl.runtime.sync.image import ImageReader, ImageWriter, Layout
from plugrl.runtime.sync.memory import PrivateMap, anonymous_memory, map_shared
from plugrl.runtime.sync.source import TensorSpec


def shared_kilobytes(address: int) -> int:
    """Return the size of the mapping around an address as far as it is shared memory, 0 for private memory."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return (end - start) // 1024 if "memfd:plugrl" in line else 0
    return 0


def test_receivers_compute_with_the_mapped_memory_and_write_only_to_their_own(wire):
    line = wire("handle", 2)
    state = {"w": torch.randn(1000, 100)}
    line.deliver(state, 1)
    first, second = (model.state["w"] for model in line.models)
    assert shared_kilobytes(first.data_ptr()) >= 390 and shared_kilobytes(second.data_ptr()) >= 390
    first[0, 0] = 12345
    assert second[0, 0] == state["w"][0, 0]
    line.deliver({"w": torch.randn(1000, 100)}, 2)
    line.deliver({"w": torch.randn(1000, 100)}, 3)  # Into the image that was written to.
    again = [model.state["w"].data_ptr() for model in line.models]
    assert again == [first.data_ptr(), second.data_ptr()], "mapped anew, at the price of all its page faults"


def test_what_was_written_to_an_image_is_forgotten_also_where_the_system_does_not_say_where(wire, monkeypatch):
    monkeypatch.setattr(memory, "_PAGE_MAP", "/proc/there/is/none")
    line = wire("handle", 1)
    for version in range(5):
        line.deliver({"w": torch.randn(1000, 100)}, version)
        line.models[0].state["w"].fill_(7.0)


def test_only_the_pages_that_were_written_to_are_given_up():
    page, pages = mmap.PAGESIZE, 40
    shared = map_shared(descriptor := anonymous_memory(page * pages), page * pages)
    shared.copy_(torch.arange(page * pages) % 251)
    mine = PrivateMap(descriptor, page * pages)
    os.close(descriptor)
    for place in (0, 7 * page, 7 * page + 1, 8 * page + 5, 20 * page, page * pages - 1):
        mine.memory[place] = 255
    assert not torch.equal(mine.memory, shared)
    assert mine.forget_writes() and torch.equal(mine.memory, shared)
    shared.zero_()
    assert not mine.memory.any(), "a page is still this process's own"


@pytest.mark.parametrize("threads", [1, 3])
def test_copies_by_several_threads_are_those_of_one(threads, monkeypatch):
    monkeypatch.setattr(copier, "_PART_BYTES", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    several = Copier(threads)
    source = torch.randn(70, 101)
    for tensor in (source, source.bfloat16(), source.t(), source[:, ::2], source[:0], torch.tensor(1.5)):
        for dtype in (torch.float32, torch.bfloat16):
            place = torch.full(tensor.shape, -1.0, dtype=dtype)
            several.copy(place, tensor)
            assert torch.equal(place, tensor.to(dtype)), (threads, tuple(tensor.shape), tensor.dtype, dtype)
    running = [thread.name for thread in threading.enumerate() if thread.name.startswith("plugrl-copy")]
    several.close()
    assert len(running) in ((0,) if threads == 1 else (1, 2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("plugrl-copy")]


def test_two_images_are_enough_and_a_held_one_is_left_alone(wire, random_state):
    line = wire("handle", 2)
    images = line.sender._end._images
    for version in range(6):
        line.deliver(random_state(version), version)
    assert len(images) == 2
    line.models[0].fails = True
    line.transfer(random_state(6), 6)
    line.models[0].fails = False
    line.deliver(random_state(7), 7)
    assert len(images) == 3, "one receiver might have used either of the two"
    for version in (8, 9):
        line.deliver(random_state(version), version)
    assert len(images) == 2


def test_other_shapes_get_another_image(wire):
    line = wire("handle", 1)
    for version, size in enumerate((10, 10, 20, 20, 5)):
        line.deliver({"w": torch.randn(size)}, version)
    assert len(line.sender._end._images) <= 2


def test_an_image_without_its_seal_is_refused():
    layout = Layout([TensorSpec("w", "float32", (4,))])
    writer = ImageWriter(0, layout)
    reader = ImageReader(os.dup(writer.descriptor), layout)
    with pytest.raises(WeightSyncError, match="not one of version 1"):
        reader.tensors(1)
    writer.seal(1)
    reader.tensors(1)
    with pytest.raises(WeightSyncError, match="not one of version 2"):
        reader.tensors(2)
    writer.open()
    with pytest.raises(WeightSyncError, match="its seal"):
        reader.tensors(1)
    writer.close()
    reader.close()


def test_a_stream_that_is_not_as_announced_fails(wire, random_state):
    line = wire("handle", 1)
    state = random_state(1)
    specs = specs_of(state.items())
    for tensors, said in (
        (list(state.items())[:-1], "did not come: small.8"),
        ([*state.items(), ("more", torch.ones(1))], "'more' was not announced"),
    ):
        waiting = line._pool.submit(line.receivers[0].apply, 1, line.models[0].load)
        with pytest.raises(WeightSyncError, match=said):
            line.sender.send(WeightSource(tensors=tensors, specs=specs), 1)
        assert "gave up" in str(waiting.exception(20))
    line.deliver(state, 1)
