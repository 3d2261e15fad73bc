"""`plugrl accept`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plugrl.cli import console
from plugrl.cli.training import PluginOptions, with_overrides
from plugrl.errors import UserError

if TYPE_CHECKING:
    from plugrl.acceptance.baselines import Baseline
    from plugrl.acceptance.record import RunRecord
    from plugrl.acceptance.rules import Thresholds
    from plugrl.acceptance.run import Acceptance

MISTAKE = 2
"""Exit code of a mistake in what the user gave: 1 says that the platform failed."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the baseline to set otherwise.", show_default=False),
]
Platform = Annotated[str | None, typer.Option("--platform", metavar="NAME", help="The platform to judge.")]
Reference = Annotated[
    Path | None, typer.Option("--reference", metavar="FILE", help="The reference, if not the one of the baseline.")
]
BaselineOption = Annotated[
    str, typer.Option("--baseline", metavar="NAME|FILE", help="What to train: quickstart, gsm8k or a YAML file.")
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="Steps, if not the baseline's.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="The folder of the run and the report.")]
Check = Annotated[
    list[Path] | None,
    typer.Option("--check", metavar="RUN_DIR", help="Take this run instead of training; repeatable for a reference."),
]
MakeReference = Annotated[
    Path | None, typer.Option("--make-reference", metavar="FILE", help="Write a reference instead of judging.")
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="N,N,...", help="Seeds of the runs of a new reference.")
]
ThresholdOption = Annotated[
    list[str] | None, typer.Option("--threshold", metavar="NAME=NUMBER", help="A threshold to set otherwise.")
]


@dataclass(frozen=True)
class _Request:
    """What was asked for."""

    overrides: tuple[str, ...]
    platform: str | None
    reference: Path | None
    baseline: str
    steps: int | None
    output: Path | None
    check: tuple[Path, ...]
    make_reference: Path | None
    seeds: tuple[int, ...]
    thresholds: tuple[str, ...]
    plugins: tuple[str, ...]

    def refuse_contradictions(self) -> None:
        """Refuse options that would have no effect together."""
        if self.check and (self.overrides or self.platform or self.steps or self.seeds):
            raise UserError("--check takes a run that exists: leave out --platform, --steps, --seeds and KEY=VALUE.")
        if len(self.check) > 1 and self.make_reference is None:
            raise UserError("--check takes one run; several make a reference, with --make-reference FILE.")
        if self.seeds and self.make_reference is None:
            raise UserError("--seeds are those of a new reference: give --make-reference FILE, or trainer.seed=N.")
        if self.reference is not None and self.make_reference is not None:
            raise UserError("--reference is read and --make-reference is written: give one of them.")


@with_overrides
def accept(
    overrides: Overrides = None,
    platform: Platform = None,
    reference: Reference = None,
    baseline: BaselineOption = "quickstart",
    steps: Steps = None,
    output: Output = None,
    check: Check = None,
    make_reference: MakeReference = None,
    seeds: Seeds = None,
    threshold: ThresholdOption = None,
    plugin: PluginOptions = None,
) -> None:
    """Judge a platform by a training run: does the reward rise as it does on a trusted platform?

    Exit code 0 says pass, 1 fail, 2 that something was given wrongly.
    """
    with mistakes():
        request = _Request(
            overrides=tuple(overrides or ()),
            platform=platform,
            reference=reference,
            baseline=baseline,
            steps=steps,
            output=output,
            check=tuple(check or ()),
            make_reference=make_reference,
            seeds=_numbers(seeds),
            thresholds=tuple(threshold or ()),
            plugins=tuple(plugin or ()),
        )
        request.refuse_contradictions()
        if make_reference is not None:
            _make_reference(request, make_reference)
            return
        passed = _judge(request)
    raise typer.Exit(0 if passed else 1)


@contextmanager
def mistakes() -> Iterator[None]:
    """Print a user's mistake as one message and end with its own exit code."""
    try:
        yield
    except UserError as error:
        console.complain(str(error))
        raise typer.Exit(MISTAKE) from None


def _judge(request: _Request) -> bool:
    """Train or read the run, judge it, write and print the outcome; returns the verdict."""
    from plugrl.acceptance.baselines import find_baseline, find_reference
    from plugrl.acceptance.record import read_record
    from plugrl.acceptance.run import assess, thresholds_from

    baseline = find_baseline(request.baseline)
    reference, name = find_reference(baseline.name, request.reference)
    thresholds = thresholds_from(request.thresholds, reference.thresholds)
    if request.check:
        record = read_record(request.check[0])
    else:
        record = _train(request, baseline, thresholds)
    outcome = assess(record, reference, name, thresholds)
    _conclude(outcome, request.output or record.path)
    return outcome.passed


def _train(request: _Request, baseline: Baseline, thresholds: Thresholds, seed: int | None = None) -> RunRecord:
    from plugrl.acceptance.run import baseline_config, check_length, train_baseline

    config = baseline_config(
        baseline,
        request.overrides if seed is None else (*request.overrides, f"trainer.seed={seed}"),
        platform=request.platform,
        steps=request.steps,
        output=request.output,
        subfolder="" if seed is None else f"seed{seed}",
        plugins=request.plugins,
    )
    check_length(config, thresholds)
    return train_baseline(config)


def _conclude(outcome: Acceptance, folder: Path) -> None:
    """Write the outcome and print it, the verdict last."""
    from plugrl.acceptance.report import measured_text, needed_text
    from plugrl.acceptance.run import write_outcome

    page = write_outcome(outcome, folder)
    console.heading(f"Acceptance of {outcome.platform} against {outcome.reference.describe()}")
    console.show_table(
        ("", "rule", "measured", "needed", "what is measured"),
        [(rule.passed, rule.name, measured_text(rule), needed_text(rule), rule.text) for rule in outcome.rules],
    )
    for rule in outcome.rules:
        if rule.note:
            console.say(f"{rule.name}: {rule.note.splitlines()[0]}")
    for line in outcome.differences:
        console.warn(f"the run differs from the reference in {line}")
    console.say(f"{'PASS' if outcome.passed else 'FAIL'}: {page}")


def _make_reference(request: _Request, target: Path) -> None:
    """Write a reference from runs that exist, or from new ones, one for each seed."""
    from plugrl.acceptance.baselines import find_baseline
    from plugrl.acceptance.record import read_record
    from plugrl.acceptance.reference import make_reference, save_reference
    from plugrl.acceptance.report import measured_text, needed_text
    from plugrl.acceptance.run import own_failures, thresholds_from

    baseline = find_baseline(request.baseline)
    thresholds = thresholds_from(request.thresholds, {})
    if request.check:
        records = [read_record(folder) for folder in request.check]
    else:
        records = [_train(request, baseline, thresholds, seed) for seed in request.seeds or (None,)]
    own = [text.partition("=")[0] for text in request.thresholds]
    reference = make_reference(records, baseline.name, {name: getattr(thresholds, name) for name in own})
    save_reference(reference, target)
    for seed, rule in own_failures(reference, records, thresholds):
        console.warn(
            f"seed {seed} itself fails the rule {rule.name}: {measured_text(rule)}, needed {needed_text(rule)}. "
            "Set the threshold that this baseline needs with --threshold."
        )
    console.say(f"Reference of {reference.describe()}: {target}")


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--seeds wants whole numbers with commas between them, such as 42,1,2; got {text}.") from None
