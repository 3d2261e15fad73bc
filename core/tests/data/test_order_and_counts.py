"""Generated arithmetic, the order of prompts and the arithmetic of a run."""

from __future__ import annotations

from itertools import islice

import pytest

from plugrl.data import PromptSampler, plan_run
from plugrl.data.arithmetic import arithmetic
from plugrl.errors import CheckpointError, ConfigError, DataError


def test_arithmetic_problems_are_right_distinct_and_held_out():
    splits = arithmetic(operators="+-*", max=20, num_train=300, num_val=100, seed=3)
    prompts = [record.prompt for record in splits.train + splits.val]
    assert (len(splits.train), len(splits.val), len(set(prompts))) == (300, 100, 400)
    for record in splits.train + splits.val:
        assert record.prompt.endswith("=")
        assert str(eval(record.prompt[:-1])) == record.ground_truth == record.response
    assert arithmetic(operators="+-*", max=20, num_train=300, num_val=100, seed=3) == splits
    assert arithmetic(operators="+-*", max=20, num_train=300, num_val=100, seed=4) != splits


def test_all_problems_there_are():
    splits = arithmetic(operators="+", min=1, max=3, num_train=6, num_val=3)
    assert len({record.prompt for record in splits.train + splits.val}) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operators": "+/"}, "operators: '\\+/'"),
        ({"operators": ""}, "operators"),
        ({"min": 5, "max": 4}, "max: 4 is less than min"),
        ({"operators": "+", "max": 3, "num_train": 16, "num_val": 1}, "have 16"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(ConfigError, match=message):
        arithmetic(**options)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_takes_each_row_at_most_once(shuffle):
    sampler = PromptSampler(10, 3, shuffle=shuffle, seed=1)
    batches = list(islice(sampler, 6))
    for epoch in (batches[:3], batches[3:]):
        rows = [row for batch in epoch for row in batch]
        assert len(set(rows)) == 9
    assert sampler.epoch == 1
    assert (batches[0] == [0, 1, 2]) != shuffle
    assert (batches[:3] == batches[3:]) != shuffle


@pytest.mark.parametrize("taken", range(0, 9))
def test_resume_is_exact_at_every_batch(taken):
    sampler = PromptSampler(10, 3, seed=7)
    for _ in range(taken):
        next(sampler)
    state = sampler.state_dict()
    resumed = PromptSampler(10, 3, seed=7)
    resumed.load_state_dict(state)
    assert list(islice(resumed, 8)) == list(islice(sampler, 8))


def test_resume_with_other_data_is_refused():
    state = PromptSampler(10, 3, seed=7).state_dict()
    with pytest.raises(CheckpointError, match="num_rows was 10 when it was saved and is 11 now"):
        PromptSampler(11, 3, seed=7).load_state_dict(state)
    with pytest.raises(CheckpointError, match="seed"):
        PromptSampler(10, 3, seed=8).load_state_dict(state)


def test_too_few_rows_for_a_batch():
    with pytest.raises(DataError, match="2 rows do not fill one batch of 3"):
        PromptSampler(2, 3)


PLANS = [
    (64, 16, 5, 15, (116, 1740, 320, 80, 4, 40)),
    (1024, 256, 8, 30, (7, 210, 8192, 2048, 4, 1024)),
]


@pytest.mark.parametrize(("batch", "mini", "n", "epochs", "expected"), PLANS)
def test_run_arithmetic_of_the_reference(batch, mini, n, epochs, expected):
    plan = plan_run(
        num_rows=7473, train_batch_size=batch, ppo_mini_batch_size=mini, n=n, devices=8, total_epochs=epochs
    )
    assert (
        plan.steps_per_epoch,
        plan.total_steps,
        plan.rollouts_per_step,
        plan.samples_per_mini_batch,
        plan.optimizer_steps_per_step,
        plan.samples_per_device_per_step,
    ) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 3}, "data.train_batch_size: 4 is more than the 3"),
        ({"ppo_mini_batch_size": 3}, "3 does not divide"),
        ({"devices": 3}, "cannot be shared evenly by 3 ranks"),
    ],
)
def test_sizes_that_do_not_fit(options, message):
    with pytest.raises(ConfigError, match=message):
        plan_run(**{"num_rows": 100, "train_batch_size": 4, "ppo_mini_batch_size": 2, **options})


def test_given_steps_override_epochs():
    assert plan_run(num_rows=8, train_batch_size=4, ppo_mini_batch_size=4, total_training_steps=7).total_steps == 7
