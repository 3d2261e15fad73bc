"""The command line as a user meets it: help, errors in one message, exit codes, start-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plugrl.cli.app import run
from plugrl.cli.commands import COMMANDS
from plugrl.errors import ConfigError, WorkerDied


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a stand-in where the runners are and let configurations load as they are named."""
    module = ModuleType("plugrl.runners.main")
    module.calls = []  # type: ignore[attr-defined]
    for name in ("run_train", "run_sft", "run_eval"):
        setattr(module, name, lambda *given, name=name: module.calls.append((name, *given)))
    monkeypatch.setitem(sys.modules, "plugrl.runners.main", module)
    monkeypatch.setattr("plugrl.config.loader.load_config", lambda *given, **named: (given, named))
    return module


def test_commands_hand_configuration_and_overrides_to_the_runner(runner: Any) -> None:
    assert run(["train", "a.yaml", "x.y=1", "--z=[1, 2]", "-p", "no:npu"]) == 0
    assert run(["sft", "a.yaml"]) == 0
    assert run(["eval", "a.yaml", "--checkpoint", "some/where", "x=1"]) == 0
    (train, loaded), sft, (evaluate, _, checkpoint) = runner.calls
    assert train == "run_train" and sft[0] == "run_sft" and evaluate == "run_eval"
    assert loaded == ((Path("a.yaml"), ["x.y=1", "--z=[1, 2]"]), {"task": "train", "plugin_options": ["no:npu"]})
    assert checkpoint == str(Path("some/where").absolute())


def test_a_users_mistake_is_one_message_without_traceback(runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("actor.x: unknown key")

    runner.run_train = fail
    assert run(["train", "a.yaml"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "error: actor.x: unknown key\n" and captured.out == ""


def test_a_lost_worker_is_one_message(runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise WorkerDied("actor rank 1 (pid 7) died", group="actor", rank=1)

    runner.run_train = fail
    assert run(["train", "a.yaml"]) == 1
    assert capsys.readouterr().err == "error: actor rank 1 (pid 7) died\n"


def test_debug_lets_the_error_through(runner: Any) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("no")

    runner.run_train = fail
    with pytest.raises(ConfigError):
        run(["train", "a.yaml"], debug=True)


def test_a_defect_is_one_line_and_a_file(
    runner: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runner.run_train = fail
    assert run(["train", "a.yaml"]) == 1
    text = capsys.readouterr().err
    assert text.startswith("error: KeyError: 'lost'\n") and "Traceback (most" not in text and "--debug" in text
    (file,) = tmp_path.iterdir()
    assert str(file) in text and "Traceback (most recent call last)" in file.read_text()


def test_an_interrupt_exits_with_130(runner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    runner.run_train = fail
    assert run(["train", "a.yaml"]) == 130
    assert "Interrupted." in capsys.readouterr().err


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trian"]) == 2
    assert "No such command" in capsys.readouterr().err
    assert run(["train"]) == 2
    assert "CONFIG" in capsys.readouterr().err


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("plugrl 0.")


def test_report_of_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 1
    assert "is no folder of a run" in capsys.readouterr().err


def test_report_prints_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.0, "critic/rewards/mean": 0.5}) + "\n")
    assert run(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()


def test_data_arithmetic_writes_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "arithmetic", "--output", str(tmp_path), "--num-train", "5", "--num-val", "2"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 5 and all(row["prompt"].endswith("=") and row["ground_truth"] for row in rows)


def test_data_errors_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    given = tmp_path / "train.jsonl"
    given.write_text('{"question": "q", "answer": "#### 1"}\n{"question": \n')
    assert run(["data", "gsm8k", "--input", str(given), "--output", str(tmp_path / "out.parquet")]) == 1
    text = capsys.readouterr().err
    assert "train.jsonl" in text and "2" in text


def test_config_of_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", "/nowhere/run.yaml"]) == 1
    assert (
        capsys.readouterr().err == "error: Cannot read the configuration /nowhere/run.yaml: No such file or directory\n"
    )


def test_starting_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys; from plugrl.cli.app import run; run(['plugins', 'list']); "
        "heavy = {'torch', 'ray', 'transformers', 'numpy', 'matplotlib', 'yaml'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_termination_unwinds_the_stack(tmp_path: Path) -> None:
    """SIGTERM closes what is open, as Ctrl-C does."""
    script = tmp_path / "s.py"
    script.write_text(
        "import sys, time, types\n"
        "m = types.ModuleType('plugrl.runners.main')\n"
        "def train(config):\n"
        "    try:\n"
        "        print('running', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "m.run_train = train\n"
        "sys.modules['plugrl.runners.main'] = m\n"
        "import plugrl.config.loader as loader\n"
        "loader.load_config = lambda *a, **k: None\n"
        "from plugrl.cli.app import main\n"
        "main(['train', 'x.yaml'])\n"
    )
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            time.sleep(0.1)
            os.kill(process.pid, number)
            out, _ = process.communicate(timeout=30)
            assert out == "closed\n" and process.returncode == code


def test_a_launcher_may_not_start_train_several_times(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1",
                        "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert run(["train", "a.yaml"]) == 1
    assert "a launcher started 2 of it" in capsys.readouterr().err
