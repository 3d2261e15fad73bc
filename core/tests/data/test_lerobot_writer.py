"""Data sets that are written are read back, by this package's reader, bit by bit."""

from __future__ import annotations

import json

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from plugrl.data.lerobot import DatasetInfo, FrameSamples  # noqa: E402
from plugrl.data.lerobot.metadata import read_statistics, read_table  # noqa: E402
from plugrl.data.lerobot.writer import DatasetWriter  # noqa: E402
from plugrl.errors import DataError  # noqa: E402


def episode(length, seed):
    random = numpy.random.default_rng(seed)
    return {
        "observation.images.main": random.integers(0, 256, (length, 6, 5, 3), dtype=numpy.uint8),
        "observation.state": random.normal(size=(length, 2)).astype(numpy.float32),
        "action": random.normal(size=(length, 3)).astype(numpy.float32),
        "next.reward": random.normal(size=length).astype(numpy.float32),
        "next.done": numpy.arange(length) == length - 1,
    }


def test_what_is_written_is_read(tmp_path, monkeypatch):
    pytest.importorskip("av")
    monkeypatch.setattr("plugrl.data.lerobot.writer.FILE_BYTES", 800)  # an episode fills a file
    episodes = [episode(length, seed) for seed, length in enumerate((4, 3, 5))]
    with DatasetWriter(tmp_path / "set", 10, "arm") as writer:
        for number, frames in enumerate(episodes):
            writer.add(frames, f"task {number % 2}")
    info = DatasetInfo.load(tmp_path / "set")
    assert [info.table[number].length for number in info.episodes] == [4, 3, 5]
    assert len(list((tmp_path / "set/data").rglob("*.parquet"))) > 1
    samples = FrameSamples(info, [0, 2], delta_timestamps={"action": [0.0, 0.1]})
    batch = samples.batch([0, 3, 4, 8])
    assert samples.tasks == {0: "task 0", 1: "task 1"}
    assert batch["task_index"].tolist() == [0, 0, 0, 0]
    pictures = (batch["observation.images.main"] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    for row, (which, frame) in enumerate(((0, 0), (0, 3), (2, 0), (2, 4))):
        assert (pictures[row] == episodes[which]["observation.images.main"][frame]).all()
        assert (batch["observation.state"][row].numpy() == episodes[which]["observation.state"][frame]).all()
        following = min(frame + 1, len(episodes[which]["action"]) - 1)
        assert (batch["action"][row].numpy() == episodes[which]["action"][[frame, following]]).all()
    assert batch["action_is_pad"].tolist() == [[False, False], [False, True], [False, False], [False, True]]


def test_statistics_are_those_of_all_frames(tmp_path):
    episodes = [episode(length, seed) for seed, length in enumerate((4, 3))]
    with DatasetWriter(tmp_path / "set", 10, "arm") as writer:
        for frames in episodes:
            writer.add(frames, "do")
    found = read_statistics(tmp_path / "set")
    actions = numpy.concatenate([frames["action"] for frames in episodes])
    pictures = numpy.concatenate([frames["observation.images.main"] for frames in episodes]).reshape(-1, 3) / 255
    for name in ("mean", "std", "min", "max"):
        numpy.testing.assert_allclose(found["action"][name], getattr(numpy, name)(actions, axis=0), rtol=1e-5)
        own = getattr(numpy, name)(pictures, axis=0).reshape(3, 1, 1)
        numpy.testing.assert_allclose(found["observation.images.main"][name], own, rtol=1e-5)
    numpy.testing.assert_allclose(found["action"]["q99"], numpy.quantile(actions, 0.99, axis=0), rtol=1e-5)
    table = read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet")
    assert {"stats/action/mean", "tasks", "length", "dataset_from_index"} <= set(table.column_names)
    tasks = read_table(tmp_path / "set/meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_an_episode_that_does_not_fit_is_refused_and_nothing_half_written_stays(tmp_path):
    with pytest.raises(DataError, match="Episode 1 has .*needs the same features"), DatasetWriter(
        tmp_path / "set", 10, "arm"
    ) as writer:
        writer.add(episode(3, 0), "do")
        writer.add({"action": numpy.zeros((3, 3), numpy.float32)}, "do")
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="at least one episode"), DatasetWriter(tmp_path / "set", 10, "arm"):
        pass
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="exists already"):
        DatasetWriter(tmp_path / "set", 10, "arm")


def test_a_picture_is_decoded_once_and_no_more_stay_than_fit(tmp_path, monkeypatch):
    pytest.importorskip("av")
    from plugrl.data.lerobot import frames

    with DatasetWriter(tmp_path / "set", 10, "arm") as writer:
        writer.add(episode(4, 0), "do")
    calls = []
    decode = frames.decode_image
    monkeypatch.setattr(frames, "decode_image", lambda data, place: calls.append(place) or decode(data, place))
    monkeypatch.setattr(frames, "CACHED_BYTES", 2 * 6 * 5 * 3)
    samples = FrameSamples(DatasetInfo.load(tmp_path / "set"), [0])
    first = samples.batch([0, 1, 2])["observation.images.main"]
    again = samples.batch([0, 1, 2])["observation.images.main"]
    assert torch.equal(first, again) and len(calls) == 4, "the first two stay, the third is decoded again"
