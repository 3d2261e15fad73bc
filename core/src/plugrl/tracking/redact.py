"""Keep secrets out of everything that a run writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "(redacted)"

_SECRET_KEY = re.compile(
    r"(^|[_\-.])(api_?key|access_?key|private_?key|secret(_?key)?|passw(or)?d|passphrase|credentials?|authorization"
    r"|(auth|access|api|bearer|hub|hf|login|refresh|session)_?token|token)$",
    re.IGNORECASE,
)
_TEXT_TOKEN = re.compile(
    r"(^|_)(eos|bos|pad|unk|sep|cls|mask|stop|end|start|special|image|think)_token$", re.IGNORECASE
)
"""Keys of tokenizers that end in `token` and hold no secret."""

_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16})\b"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]+):([^/\s@]+)(?=@)")
_ASSIGNMENT = re.compile(r"([\w.\-]+)([\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,{}\[\]]+)")


def is_secret(key: str) -> bool:
    """Whether a key names a secret: `hf_token`, `wandb.api_key`, but not `eos_token` or `max_token_len`."""
    return bool(_SECRET_KEY.search(key)) and not _TEXT_TOKEN.search(key)


def redact(value: Any) -> Any:
    """Return plain values with the secrets replaced, by the name of their key or by their own form."""
    if isinstance(value, Mapping):
        return {key: REDACTED if _hides(key, item) else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _URL_PASSWORD.sub(rf"\1:{REDACTED}", _SECRET_VALUE.sub(REDACTED, value))
    return value


def redact_argument(argument: str) -> str:
    """Return an argument of the command line, such as `reward.reward_kwargs.api_key=...`, without its secrets."""
    key, assigned, _ = argument.partition("=")
    if assigned and is_secret(key):
        return f"{key}={REDACTED}"
    hidden = _ASSIGNMENT.sub(
        lambda found: f"{found[1]}{found[2]}{REDACTED}" if is_secret(found[1]) else found[0], argument
    )
    return str(redact(hidden))


def _hides(key: Any, item: Any) -> bool:
    """Whether an item is a secret: a text, or the digits of a password; a number as a `token` is a token's id."""
    name = str(key)
    number = isinstance(item, int) and not isinstance(item, bool) and not name.lower().endswith("token")
    return is_secret(name) and (number or (isinstance(item, str) and item != ""))
