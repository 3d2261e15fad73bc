"""References: made from runs, written, read again, refused when they are no good."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugrl.acceptance.baselines import find_baseline, find_reference, names
from plugrl.acceptance.record import RunRecord, deciding, read_record
from plugrl.acceptance.reference import load_reference, make_reference, save_reference
from plugrl.acceptance.rules import Thresholds
from plugrl.acceptance.run import assess, own_failures, thresholds_from
from plugrl.errors import DataError, UserError

from .conftest import learning

ROOT = Path(__file__).resolve().parents[3]
BASELINES = ROOT / "core/src/plugrl/acceptance/baselines"
Write = Callable[..., Path]


@pytest.fixture
def runs(write_run: Write) -> list[Path]:
    """Two runs of one configuration on two seeds."""
    return [write_run(learning(seed=seed), f"seed{seed}", trainer={"seed": seed}) for seed in (1, 2)]


def test_a_reference_is_read_as_it_was_written(runs: list[Path], tmp_path: Path) -> None:
    made = make_reference([read_record(run) for run in runs], "quickstart", {"max_distance": 0.2})
    save_reference(made, tmp_path / "reference.json")
    read = load_reference(tmp_path / "reference.json")
    assert read == made
    assert read.describe() == "cpu, seeds 1, 2, 100 steps"
    assert read.rewards[10] == pytest.approx((learning(seed=1)[10] + learning(seed=2)[10]) / 2, abs=1e-5)
    assert read.band[10][0] < read.rewards[10] < read.band[10][1]
    assert read.versions["torch"] == "2.13.0"
    assert thresholds_from((), read.thresholds).max_distance == 0.2
    assert thresholds_from(["max_distance=0.3"], read.thresholds).max_distance == 0.3
    assert len((tmp_path / "reference.json").read_text()) < 5000


def test_the_hash_does_not_depend_on_the_order_of_keys(runs: list[Path], write_run: Write) -> None:
    turned = write_run(learning(seed=3), "turned", trainer={"seed": 3})
    values = yaml.safe_load((turned / "config.yaml").read_text())
    (turned / "config.yaml").write_text(yaml.safe_dump(dict(reversed(values.items())), sort_keys=False))
    hashes = {make_reference([read_record(run)], "x").configuration_hash for run in (runs[0], turned)}
    assert len(hashes) == 1
    other = write_run(learning(seed=3), "other", data={"source": "files"})
    assert make_reference([read_record(other)], "x").configuration_hash not in hashes


@pytest.mark.parametrize(
    ("rewards", "changed", "message"),
    [
        (learning(60), {}, "60 of 100 steps"),
        ([*learning(50), None, *learning(49)], {}, "critic/rewards/mean of step 51"),
        (learning(100), {"trainer": {"seed": 1}}, "different values of trainer.seed, got [1, 1]"),
        (learning(100), {"data": {"source": "files"}}, "differ in data.source."),
        (learning(100), {"platform": "other"}, "a reference is of one platform"),
    ],
)
def test_runs_that_do_not_make_a_reference_are_refused(
    runs: list[Path], write_run: Write, rewards: list[float], changed: dict[str, Any], message: str
) -> None:
    bad = write_run(rewards, "bad", **changed)
    with pytest.raises(DataError) as caught:
        make_reference([read_record(runs[0]), read_record(bad)], "quickstart")
    assert message in str(caught.value) and str(bad) in str(caught.value) + str(bad) * ("seed" in message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(format=2), "format: Input should be 1"),
        (lambda values: values["configuration"].update({"actor.optim.lr": 1.0}), "the file was altered"),
        (lambda values: values.update(curves=[]), "curves: Tuple should have at least 1 item"),
        (lambda values: values.update(more=1), "more: Extra inputs are not permitted"),
        (lambda values: values["curves"][0].update(rewards=[0.1, None, 0.2]), "curves.0.rewards.1"),
    ],
)
def test_a_file_that_is_no_reference_is_named(
    runs: list[Path], tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "reference.json"
    save_reference(make_reference([read_record(runs[0])], "quickstart"), path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(DataError) as caught:
        load_reference(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "reference.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=str(path)):
        load_reference(path)


def test_another_configuration_is_told_key_by_key(runs: list[Path], write_run: Write) -> None:
    reference = make_reference([read_record(runs[0])], "quickstart")
    other = read_record(write_run(learning(seed=9), "other", data={"source": "files", "seed": 3}))
    outcome = assess(other, reference, "reference.json", thresholds_from((), {}))
    assert outcome.differences == ("data.source: 'files', in the reference 'arithmetic'",)
    assert outcome.passed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_distanse=0.1", "Did you mean max_distance?"),
        ("max_distance", "must be NAME=NUMBER"),
        ("max_distance=far", "max_distance: Input should be a valid number"),
        ("window=1", "window: Input should be greater than or equal to 2"),
        ("min_gain=nan", "min_gain: Input should be a finite number"),
    ],
)
def test_a_wrong_threshold_is_one_message(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        thresholds_from([text], {})
    assert message in str(caught.value) and "--threshold" in str(caught.value)


# --------------------------------------------------------------------- what comes with the package
def test_the_quickstart_baseline_is_the_quickstart() -> None:
    """In everything that decides what is trained, but for the length of the schedule, which is the quickstart's own."""
    example = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    baseline = yaml.safe_load((BASELINES / "quickstart.yaml").read_text())
    assert baseline["actor"]["optim"].pop("total_training_steps") == example["trainer"]["total_training_steps"]
    assert deciding(baseline) == deciding(example)
    assert baseline["cluster"] == example["cluster"]


def test_the_reference_of_the_quickstart_is_of_its_baseline_and_its_seeds_accept_each_other() -> None:
    reference, where = find_reference("quickstart", None)
    assert reference.baseline == "quickstart" and reference.platform == "cpu" and "comes with plugrl" in where
    assert len(reference.seeds) >= 3 and len(reference.rewards) == Thresholds().horizon
    given = deciding(yaml.safe_load((BASELINES / "quickstart.yaml").read_text()))
    assert {key: reference.configuration[key] for key in given} == given
    runs = [RunRecord(Path("run"), curve.rewards, len(curve.rewards)) for curve in reference.curves]
    assert own_failures(reference, runs, thresholds_from((), reference.thresholds)) == []


def test_the_gsm8k_baseline_is_the_example() -> None:
    assert (BASELINES / "gsm8k.yaml").read_bytes() == (ROOT / "examples/baseline_grpo_gsm8k.yaml").read_bytes()


def test_baselines_are_found_by_name_and_by_file(tmp_path: Path) -> None:
    assert names() == ["gsm8k", "quickstart"]
    assert find_baseline("quickstart").path.is_file()
    (tmp_path / "mine.yaml").write_text("{}")
    assert find_baseline(str(tmp_path / "mine.yaml")).name == "mine"
    with pytest.raises(UserError, match="Did you mean quickstart\\? Known: gsm8k, quickstart"):
        find_baseline("quikstart")
    with pytest.raises(DataError, match="No reference comes with the baseline gsm8k.*--make-reference"):
        find_reference("gsm8k", None)
