"""`plugrl accept` on runs that exist: verdict, exit codes, contradictions. Training is in tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.cli.app import run

from .conftest import learning

Write = Callable[..., Path]


@pytest.fixture
def reference(write_run: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A reference made by the command from two runs."""
    target = tmp_path / "reference.json"
    runs = [write_run(learning(seed=s), f"seed{s}", trainer={"seed": s}) for s in (1, 2)]
    assert run(["accept", "--make-reference", str(target), "--check", str(runs[0]), "--check", str(runs[1])]) == 0
    assert f"Reference of cpu, seeds 1, 2, 100 steps: {target}" in capsys.readouterr().out
    return target


def test_a_good_run_passes_and_leaves_its_report(
    reference: Path, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(learning(seed=7), platform="newchip")
    assert run(["accept", "--check", str(folder), "--reference", str(reference)]) == 0
    out = capsys.readouterr().out
    assert out.strip().splitlines()[-1] == f"PASS: {folder / 'acceptance.html'}"
    assert "Acceptance of newchip against cpu, seeds 1, 2, 100 steps" in out
    assert json.loads((folder / "acceptance.json").read_text())["passed"]


def test_a_flat_run_fails_and_says_by_which_rules(
    reference: Path, write_run: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run([0.45] * 100, data={"source": "files"})
    arguments = ["accept", "--check", str(folder), "--reference", str(reference), "--output", str(tmp_path / "out")]
    assert run(arguments) == 1
    captured = capsys.readouterr()
    assert f"FAIL: {tmp_path / 'out' / 'acceptance.html'}" in captured.out and "trend" in captured.out
    assert "differs from the reference in data.source: 'files', in the reference 'arithmetic'" in captured.err
    assert not (folder / "acceptance.json").exists()


def test_a_reference_whose_own_seeds_break_a_rule_says_so(
    write_run: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = write_run(learning(seed=1), "steady", trainer={"seed": 1})
    noisy = write_run(learning(seed=2, noise=0.12), "noisy", trainer={"seed": 2})
    target = ["accept", "--make-reference", str(tmp_path / "r.json"), "--check", str(steady), "--check", str(noisy)]
    assert run(target) == 0
    warned = capsys.readouterr().err
    assert "seed 2 itself fails the rule no_collapse" in warned and "seed 1 itself fails" not in warned
    assert run([*target, "--threshold", "max_fall=0.5"]) == 0
    assert "no_collapse" not in capsys.readouterr().err


def test_thresholds_can_be_set(reference: Path, write_run: Write) -> None:
    folder = write_run(learning(seed=7))
    arguments = ["accept", "--check", str(folder), "--reference", str(reference)]
    assert run([*arguments, "--threshold", "max_distance=0.001"]) == 1
    assert run([*arguments, "--threshold", "max_distance=0.2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "RUN", "--platform", "cpu"], "--check takes a run that exists"),
        (["--check", "RUN", "actor.optim.lr=1"], "--check takes a run that exists"),
        (["--check", "RUN", "--check", "RUN"], "--check takes one run"),
        (["--check", "nowhere", "--reference", "REF"], "no folder of a run"),
        (["--check", "RUN", "--reference", "nowhere.json"], "Cannot read the reference nowhere.json"),
        (["--check", "RUN", "--baseline", "gsm8k"], "No reference comes with the baseline gsm8k"),
        (["--check", "RUN", "--reference", "REF", "--threshold", "window=x"], "--threshold window"),
        (["--seeds", "1,2"], "--seeds are those of a new reference"),
        (["--seeds", "1,a", "--make-reference", "x.json"], "--seeds wants whole numbers"),
        (["--reference", "a.json", "--make-reference", "x.json"], "give one of them"),
        (["--baseline", "nothing"], "is neither a file nor the name of a baseline"),
        (["--reference", "REF", "platform=cpu"], "give the folder with --output and the platform with --platform"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, write_run: Write, reference: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = {"RUN": str(write_run(learning(seed=7))), "REF": str(reference)}
    assert run(["accept", *(places.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.startswith("error: ") and "Traceback" not in captured.err
