"""Videos in the report: the first and the last evaluation, within the page."""

from __future__ import annotations

from pathlib import Path

from plugrl.tracking.report_videos import video_section


def test_the_first_and_the_last_evaluation_are_shown_and_nothing_else(tmp_path: Path) -> None:
    assert video_section(tmp_path / "none") == ""
    for step in (0, 10, 20):
        (tmp_path / f"step{step:06d}_slice0_scene000_seed0.mp4").write_bytes(b"film %d" % step)
    (tmp_path / "step000020_x.txt").write_text("no film")
    page = video_section(tmp_path)
    assert page.count("<video") == 2 and "step 0</h3>" in page and "step 20</h3>" in page and "step 10<" not in page
    assert "data:video/mp4;base64,ZmlsbSAw" in page and "<figcaption>seed 0</figcaption>" in page


def test_a_large_video_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "step000001_a.mp4").write_bytes(bytes(5 * 2**20))
    assert '<a href="videos/step000001_a.mp4">' in video_section(tmp_path) and len(video_section(tmp_path)) < 1000
