"""Secrets are recognised by their key or their form; what only looks alike is left alone."""

from __future__ import annotations

import pytest

from plugrl.tracking.redact import REDACTED, is_secret, redact, redact_argument


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "HF_TOKEN",
        "api_key",
        "wandb.api_key",
        "apikey",
        "password",
        "secret",
        "client_secret",
        "aws_secret_key",
        "access_key",
        "private_key",
        "credentials",
        "Authorization",
        "passphrase",
    ],
)
def test_names_of_secrets(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "eos_token",
        "pad_token",
        "ppo_max_token_len_per_gpu",
        "tokenizer",
        "max_new_tokens",
        "loss_agg_mode",
        "key",
        "prompt_key",
        "keys",
        "secretary",
        "stop_token_ids",
    ],
)
def test_names_that_only_look_alike(key: str) -> None:
    assert not is_secret(key)


def test_values_are_replaced_at_any_depth() -> None:
    given = {
        "p": {"password": 1234, "token": 7, "secret": False},
        "a": [{"api_key": "abc"}],
        "b": {"token": "x", "eos_token": "</s>"},
        "n": 3,
        "password": None,
        "t": (1,),
    }
    assert redact(given) == {
        "p": {"password": REDACTED, "token": 7, "secret": False},
        "a": [{"api_key": REDACTED}],
        "b": {"token": REDACTED, "eos_token": "</s>"},
        "n": 3,
        "password": None,
        "t": [1],
    }


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("use hf_" + "a" * 30 + " please", "use (redacted) please"),
        ("https://me:pw123@example.org/x", "https://me:(redacted)@example.org/x"),
        ("sk-" + "b" * 24, "(redacted)"),
        ("https://example.org:8080/a@b", "https://example.org:8080/a@b"),
        ("token-mean", "token-mean"),
    ],
)
def test_secrets_within_texts(text: str, kept: str) -> None:
    assert redact(text) == kept


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("reward.reward_kwargs.api_key=abc def", "reward.reward_kwargs.api_key=(redacted)"),
        ("--reward.reward_kwargs.api_key=abc", "--reward.reward_kwargs.api_key=(redacted)"),
        (
            "reward.reward_kwargs={api_key: 'a b', url: https://x/y, n: 3}",
            "reward.reward_kwargs={api_key: (redacted), url: https://x/y, n: 3}",
        ),
        ('reward.reward_kwargs={"token":"abc"}', 'reward.reward_kwargs={"token":(redacted)}'),
        ("actor.ppo_max_token_len_per_gpu=4", "actor.ppo_max_token_len_per_gpu=4"),
        ("model.path=https://me:pw@host/x", "model.path=https://me:(redacted)@host/x"),
    ],
)
def test_secrets_on_the_command_line(argument: str, kept: str) -> None:
    assert redact_argument(argument) == kept
