"""Which configuration `plugrl sft` is given, and where a launcher has put a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugrl.checkpoints import CheckpointStore
from plugrl.errors import CheckpointError, ConfigError
from plugrl.runners.config_path import locate, sft_sources
from plugrl.runtime.launched import Link, launched

VARIABLES = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node0",
             "MASTER_PORT": "29500"}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with the steps 3 and 12, and what a crash left of step 20."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (3, 12):
        with store.write(step) as directory:
            (directory / "pretrained_model").mkdir()
            (directory / "pretrained_model" / "train_config.json").write_text("{}")
    (tmp_path / "run" / "checkpoints" / "000020").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("form", "step"),
    [
        ("", 12), ("checkpoints", 12), ("checkpoints/last", 12), ("checkpoints/000003", 3),
        ("checkpoints/000003/pretrained_model", 3), ("checkpoints/last/pretrained_model/train_config.json", 12),
    ],
)  # fmt: skip
def test_every_form_of_a_path_to_a_checkpoint(folder: Path, form: str, step: int) -> None:
    found = locate(str(folder / form))
    checkpoint = folder / "checkpoints" / f"{step:06d}"
    assert found.checkpoint == checkpoint
    assert found.config.resolve() == checkpoint / "pretrained_model" / "train_config.json"
    config, overrides = sft_sources(["--resume=true", f"--config_path={folder / form}", "steps=20"])
    assert overrides == [
        f"trainer.default_local_dir='{folder}'", "--resume=true", "steps=20", f"trainer.resume='{checkpoint}'",
    ]  # fmt: skip


def test_a_file_of_the_users_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("{}")
    assert sft_sources([str(path), "a.b=c", "--resume=true"]) == (path, ["a.b=c", "--resume=true"])
    assert sft_sources(["--config-path=" + str(path)]) == (path, [])
    for option in ("--config_path", "--config-path"):
        assert sft_sources(["a.b=c", option, str(path), "--resume=true"]) == (path, ["a.b=c", "--resume=true"])


def test_a_checkpoints_configuration_alone_begins_another_run(folder: Path) -> None:
    """Without `resume` the folder of the run that wrote it must not be gone on with by accident."""
    assert sft_sources([str(folder)])[1] == ["trainer.resume=new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name one configuration"), (["a.yaml", "--config_path=b.yaml"], "Given: a.yaml, b.yaml"),
        (["x=1"], "none"),
        (["a.yaml", "--config_path", "b.yaml"], "Given: a.yaml, b.yaml"), (["--config_path"], "Name one configuration"),
        (["a.yaml", "--steps", "3"], "--steps=VALUE"),
    ],
)  # fmt: skip
def test_one_configuration_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sft_sources(arguments)


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no train_config.json"):
        locate(str(tmp_path))
    (tmp_path / "000001").mkdir()
    with pytest.raises(CheckpointError, match="No checkpoint in .* is whole"):
        locate(str(tmp_path))


def test_a_launchers_variables() -> None:
    found = launched(VARIABLES)
    assert found is not None and (found.rank, found.world_size) == (5, 8)
    assert (found.local_rank, found.local_world_size) == (1, 4)
    assert (found.master_addr, found.master_port) == ("node0", 29500) and not found.is_first
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        assert launched({key: value for key, value in VARIABLES.items() if key != name}) is None, name


@pytest.mark.parametrize(("name", "value"), [("RANK", "8"), ("LOCAL_RANK", "4"), ("WORLD_SIZE", "many")])
def test_variables_that_cannot_be_are_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        launched({**VARIABLES, name: value})


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("leaving", [False, True])
def test_a_store_that_gives_no_answer_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], leaving: bool
) -> None:
    """As when its host is frozen or cut off: no call to it returns then, not even on the way out after an error."""

    def end(code: int) -> None:
        raise Ended(code)

    launch = launched(VARIABLES)
    assert launch is not None
    link = Link(launch, timeout_s=3600.0 if leaving else 0.2)
    monkeypatch.setattr("plugrl.runtime.launched._LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("plugrl.runtime.launched._LEAVE_S", 0.2)
    monkeypatch.setattr("plugrl.runtime.launched.os._exit", end)
    if leaving:
        link._done.set()
    with pytest.raises(Ended):
        link._guard()
    assert "rank 5 has no answer from the store of the ranks (MASTER_ADDR node0)" in capfd.readouterr().err


def test_a_store_that_answers_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(VARIABLES)
    assert launch is not None
    link = Link(launch, timeout_s=0.0)
    monkeypatch.setattr("plugrl.runtime.launched._LOOK_EVERY_S", 0.0)

    class Closed:
        """Closed after some looks, before each of which the store answered."""

        looks = 0

        def wait(self, _: float) -> bool:
            self.looks += 1
            link._answers += 1
            return self.looks > 5

    link._closed = Closed()  # type: ignore[assignment]
    link._guard()
