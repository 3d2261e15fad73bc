"""LeRobot data sets: frames, chunks and their padding, video, and every way a file can be wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("av")

import pyarrow
import torch
from pyarrow import parquet

from plugrl.data import load_dataset
from plugrl.data.lerobot import lerobot
from plugrl.data.registry import load_source
from plugrl.data.samples import SampleSplits
from plugrl.errors import ConfigError, DataError
from plugrl.testing.lerobot_dataset import VIDEO, action_at, brightness, state_at, write_lerobot_dataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of 12, 9 and 7 frames."""
    return write_lerobot_dataset(tmp_path_factory.mktemp("lerobot"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Two episodes without a video, to be damaged."""
    return write_lerobot_dataset(tmp_path / "copy", (5, 4), video=False)


def read(root: Path, **options: Any) -> SampleSplits:
    return lerobot(None, root=str(root), **options)  # type: ignore[arg-type]


def test_frames_are_those_of_the_files(root: Path) -> None:
    splits = read(root)
    assert len(splits.train) == 28 and splits.val is None
    batch = splits.train.batch([0, 11, 12, 27])
    places = [(0, 0), (0, 11), (1, 0), (2, 6)]
    torch.testing.assert_close(batch["observation.state"], torch.tensor([state_at(*place) for place in places]))
    torch.testing.assert_close(batch["action"], torch.tensor([action_at(*place) for place in places]))
    assert batch["task_index"].tolist() == [0, 0, 1, 0]
    assert batch[VIDEO].shape == (4, 3, 32, 32) and batch[VIDEO].dtype == torch.float32
    grey = torch.tensor([brightness(index) / 255 for index in (0, 11, 12, 27)])
    torch.testing.assert_close(batch[VIDEO].mean(dim=(1, 2, 3)), grey, atol=0.02, rtol=0)
    assert not [name for name in batch if name.endswith("_is_pad")]


def test_chunks_stop_at_the_end_of_their_episode(root: Path) -> None:
    before = {"observation.state": [-0.1, 0.0]}
    splits = read(root, chunk_size=4, delta_timestamps=before, features=["observation.state", "action"])
    batch = splits.train.batch([0, 10, 12])
    assert batch["action"].shape == (3, 4, 2) and batch["observation.state"].shape == (3, 2, 2)
    assert batch["action_is_pad"].tolist() == [[False] * 4, [False, False, True, True], [False] * 4]
    assert batch["observation.state_is_pad"].tolist() == [[True, False], [False, False], [True, False]]
    expected = [action_at(0, frame) for frame in (10, 11, 11, 11)]
    torch.testing.assert_close(batch["action"][1], torch.tensor(expected))
    torch.testing.assert_close(batch["observation.state"][2], torch.tensor([state_at(1, 0)] * 2))
    assert VIDEO not in batch, "a video that is left out is not decoded"


def test_images_at_several_times_and_in_any_order(root: Path) -> None:
    samples = read(root, features=[VIDEO], delta_timestamps={VIDEO: [-0.2, 0.0, 0.3]}).train
    rows = list(range(28))
    random.Random(0).shuffle(rows)
    batch = samples.batch(rows)
    assert batch[VIDEO].shape == (28, 3, 3, 32, 32)
    starts, lengths = (0, 12, 21), (12, 9, 7)
    for position, row in enumerate(rows):
        which = max(index for index, start in enumerate(starts) if start <= row)
        for step, offset in enumerate((-2, 0, 3)):
            frame = min(max(row - starts[which] + offset, 0), lengths[which] - 1)
            value = batch[VIDEO][position, step].mean().item()
            assert value == pytest.approx(brightness(starts[which] + frame) / 255, abs=0.02), (row, offset)


def test_episodes_are_chosen_held_out_and_cut(root: Path) -> None:
    splits = read(root, features=["action"], val_episodes=[1], drop_n_last_frames=5)
    assert splits.val is not None
    assert (len(splits.train), len(splits.val)) == (7 + 2, 4)
    torch.testing.assert_close(splits.train.batch([8])["action"][0], torch.tensor(action_at(2, 1)))
    torch.testing.assert_close(splits.val.batch([3])["action"][0], torch.tensor(action_at(1, 3)))
    assert len(read(root, features=["action"], episodes=[2]).train) == 7
    with pytest.raises(IndexError):
        splits.train.batch([9])


def test_features_and_statistics_describe_what_a_policy_sees(root: Path) -> None:
    splits = read(root)
    assert splits.features == {
        "observation.state": {"type": "STATE", "shape": [2]},
        "action": {"type": "ACTION", "shape": [2]},
        VIDEO: {"type": "VISUAL", "shape": [3, 32, 32]},
    }
    states = torch.tensor([state_at(e, f) for e, n in enumerate((12, 9, 7)) for f in range(n)])
    torch.testing.assert_close(splits.statistics["observation.state"]["mean"], states.mean(0))
    torch.testing.assert_close(splits.statistics["observation.state"]["std"], states.std(0, correction=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": None}, "data.source_options.root: name the folder"),
        ({"episodes": [0, 3]}, "data.source_options.episodes: there is no episode 3"),
        ({"val_episodes": [-1]}, "val_episodes: there is no episode -1"),
        ({"features": ["acton"]}, "no feature 'acton'. Did you mean action"),
        ({"delta_timestamps": {"action": [0.05]}}, r"0.05 s is no multiple of a frame's 0.1"),
        ({"delta_timestamps": {"action": []}}, "give at least one time"),
        ({"delta_timestamps": {"action": [0.0]}, "features": ["observation.state"]}, "not among the features"),
        ({"chunk_size": 0}, "chunk_size: must be at least 1"),
        ({"chunk_size": 2, "delta_timestamps": {"action": [0.0]}}, "chunk_size"),
        ({"drop_n_last_frames": -1}, "drop_n_last_frames: must be at least 0"),
    ],
)
def test_options_that_do_not_fit_are_named(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lerobot(None, **{"root": str(root), **options})  # type: ignore[arg-type]


def edit_info(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        path = root / "meta" / "info.json"
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return edit


def edit_column(rows: dict[int, Any]) -> Callable[[Path], None]:
    """Other values in some rows of the actions."""

    def edit(root: Path) -> None:
        path = root / "data/chunk-000/file-000.parquet"
        table = parquet.read_table(path)
        values = table.column("action").to_pylist()
        for row, value in rows.items():
            values[row] = value
        place = table.column_names.index("action")
        column = pyarrow.array(values, pyarrow.list_(pyarrow.float32()))
        parquet.write_table(table.set_column(place, "action", column), path)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_column({3: [1.0], 4: [1.0, 2.0, 3.0]}), r"column 'action' does not hold \[2\].*its rows have 1, 2, 3"),
        (edit_column({3: None}), r"column 'action' .* rows have 2, None of them"),
        (edit_column({3: [1.0, None]}), "column 'action' .* values are missing"),
        (edit_info(lambda info: info.update(fps=0)), "info.json.*fps is 0"),
        (edit_info(lambda info: info.update(data_path="{chunk}.parquet")), "info.json.*'chunk'"),
        (edit_info(lambda info: info.update(features=[])), "info.json: not the description of a data set"),
        (edit_info(lambda info: info["features"]["action"].update(shape=None)), "info.json: not the description"),
        (edit_info(lambda info: info["features"].update(x={"dtype": "image", "shape": [8, 8]})), r"of x .*\[8, 8\]"),
        (lambda root: (root / "meta/info.json").unlink(), "info.json cannot be read: No such file"),
        (lambda root: (root / "meta/info.json").write_text("{"), "info.json: not JSON"),
        (lambda root: (root / "meta/info.json").write_text("[]"), "expected a JSON object"),
        (edit_info(lambda info: info.update(codebase_version="v2.1")), "version v2.1; v3 is read"),
        (edit_info(lambda info: info.pop("fps")), "KeyError\\('fps'\\)"),
        (edit_info(lambda info: info["features"]["action"].update(shape=[3])), "has 2 numbers a row; its shape is"),
        (lambda root: (root / "meta/episodes/chunk-000/file-000.parquet").unlink(), "the table of episodes"),
        (lambda root: (root / "data/chunk-000/file-000.parquet").unlink(), "file-000.parquet: not a readable parquet"),
        (lambda root: (root / "data/chunk-000/file-000.parquet").write_bytes(b"x" * 64), "not a readable parquet"),
        (lambda root: (root / "meta/stats.json").write_text('{"action": {"mean": "x"}}'), "not a table of statistics"),
        (lambda root: write_lerobot_dataset(root / "o", (4,), video=False)
         and (root / "o/data/chunk-000/file-000.parquet").rename(root / "data/chunk-000/file-000.parquet"),
         "does not hold the rows 0 to 5 of episode 0|does not hold the rows 5 to 9 of episode 1"),
    ],
)  # fmt: skip
def test_a_damaged_data_set_is_one_message(copy: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(copy)
    with pytest.raises(DataError, match=message):
        read(copy)


def test_pictures_of_another_size_than_described_are_named(tmp_path: Path) -> None:
    root = write_lerobot_dataset(tmp_path, (6,))
    edit_info(lambda info: info["features"][VIDEO].update(shape=[48, 48, 3]))(root)
    with pytest.raises(DataError, match=r"episode 0 are \(3, 32, 32\); info.json says \(3, 48, 48\)"):
        read(root).train.batch([0])


def test_a_broken_or_shifted_video_is_named(tmp_path: Path) -> None:
    root = write_lerobot_dataset(tmp_path, (6,))
    video = root / f"videos/{VIDEO}/chunk-000/file-000.mp4"
    table = root / "meta/episodes/chunk-000/file-000.parquet"
    row = parquet.read_table(table).to_pylist()[0]
    parquet.write_table(pyarrow.Table.from_pylist([{**row, f"videos/{VIDEO}/from_timestamp": 0.03}]), table)
    with pytest.raises(DataError, match=r"no frame within 0.0001 s of 0.130000 s; the nearest is 0.030000 s"):
        read(root).train.batch([1])
    assert read(root, tolerance_s=0.04).train.batch([1])[VIDEO].shape == (1, 3, 32, 32)
    video.write_bytes(b"no video")
    with pytest.raises(DataError, match="file-000.mp4: cannot be decoded"):
        read(root).train.batch([0])


def test_the_source_is_found_by_name_and_has_no_prompts(root: Path) -> None:
    from plugrl.config.schema import DataConfig

    config = DataConfig(source="lerobot", source_options={"root": str(root)})
    assert isinstance(load_source(config), SampleSplits)
    with pytest.raises(ConfigError, match="plugrl sft"):
        load_dataset(config)
    with pytest.raises(ConfigError, match="data.source_options.roots"):
        load_source(DataConfig(source="lerobot", source_options={"roots": str(root)}))
