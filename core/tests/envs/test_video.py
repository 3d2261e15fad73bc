"""Videos of episodes: the frames that were given, whole files only, one for each episode that ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")
torch = pytest.importorskip("torch")

from plugrl.envs.video import EpisodeVideos, VideoWriter, write_video  # noqa: E402
from plugrl.errors import UserError  # noqa: E402
from plugrl.testing.corridor import FaultyCorridor  # noqa: E402

from plugrl.envs import EnvParams  # noqa: E402  # isort: skip


def shades(path: Path) -> list[int]:
    """Return the mean of the green channel of each frame."""
    with av.open(str(path)) as file:
        return [round(float(frame.to_ndarray(format="rgb24")[..., 1].mean())) for frame in file.decode(video=0)]


def test_a_video_holds_the_frames_that_were_written(tmp_path: Path) -> None:
    wanted = [0, 60, 120, 180, 240]
    frames = [torch.full((33, 48, 3), shade, dtype=torch.uint8) for shade in wanted]
    path = write_video(tmp_path / "new" / "a.mp4", frames, fps=5)
    assert path == tmp_path / "new" / "a.mp4"
    assert np.allclose(shades(path), wanted, atol=3)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 5)
        assert (stream.height, stream.width, stream.pix_fmt) == (34, 48, "yuv420p"), "sizes are made even"
    assert write_video(tmp_path / "none.mp4", []) is None and not (tmp_path / "none.mp4").exists()


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4")
    writer.add(np.zeros((32, 32, 3), dtype=np.uint8))
    assert not (tmp_path / "a.mp4").exists()
    with pytest.raises(UserError, match=r"\[16, 32, 3\], those before were \[32, 32, 3\]"):
        writer.add(np.zeros((16, 32, 3), dtype=np.uint8))
    with pytest.raises(UserError, match="uint8"):
        writer.add(np.zeros((32, 32, 3)))
    writer.discard()
    assert list(tmp_path.iterdir()) == [] and writer.close() is None


def test_each_episode_of_the_chosen_scenes_gets_a_video(tmp_path: Path) -> None:
    env = FaultyCorridor(EnvParams(num_envs=3, max_episode_steps=2))
    env.reset(seed=0)
    videos = EpisodeVideos(tmp_path, [0, 2], limit=3, prefix="step5_")
    ended = []
    for _ in range(6):
        videos.film(env)
        ended += videos.finish(env.step(torch.full((3, 1), 0.25)).episodes)
    videos.close()
    assert [item.record.index for item in ended] == [0, 2, 0] and videos.videos == ended and videos.is_done
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(item.path.name for item in ended)
    assert ended[0].path.name == "step5_scene000_seed0.mp4" and len(shades(ended[0].path)) == 2
