"""Refuse answers of which no package can be made, before anything is written.

Runs in the standard library alone: as the hook of cookiecutter, and imported by ``plugrl plugins new``.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Mapping
from typing import Any

NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = frozenset({"cpu", "meta", "plugrl", "torch", "auto", "any", "none", "all", "test"})
"""Names that torch or PlugRL use for something else."""

NAMES = {
    "vendor": "acme",
    "device_type": "acme",
    "platform_name": "acme",
    "comm_backend": "accl",
}
"""Answers that must be plain names, each with an example."""

PATTERNS = {
    "torch_extension": (r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?", "the name of a module such as torch_acme, or nothing"),
    "ray_resource": (r"[A-Za-z][A-Za-z0-9_]*", "a name such as ACME, or GPU, which Ray has built in"),
    "visible_devices_env": (r"[A-Z][A-Z0-9_]*", "a variable in upper case such as ACME_VISIBLE_DEVICES"),
    "smi_command": (r"[A-Za-z0-9_.-]*", "a command without arguments such as acme-smi, or nothing"),
    "license": (r"[A-Za-z0-9.+ ()-]+", "an SPDX expression such as Apache-2.0"),
    "summary": (r'[^"\\\n{}]*[^"\\\n{}\s]', "one line without quotes, backslashes and braces"),
    "author": (r'[^"\\\n{}]*', "one line without quotes, backslashes and braces"),
}
"""The other answers: what each must match, and how that is said."""


def problems(answers: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the answers, one sentence each."""
    found = []
    wrong: list[str] = []
    for key, example in NAMES.items():
        value = str(answers[key])
        if _made_from(value, wrong):
            continue
        if not NAME.fullmatch(value):
            wrong.append(value)
            found.append(
                f"{key} {value!r} must be lower-case letters, digits and underscores, beginning with a letter, "
                f"such as {_near(value) or example}."
            )
        elif (value in RESERVED or keyword.iskeyword(value)) and key != "comm_backend":
            wrong.append(value)
            found.append(f"{key} {value!r} is reserved. Give another name, such as {value}_{example}.")
    for key, (pattern, form) in PATTERNS.items():
        if not re.fullmatch(pattern, str(answers[key])) and not _made_from(str(answers[key]), wrong):
            found.append(f"{key} {str(answers[key])!r} must be {form}.")
    return found


def _made_from(value: str, wrong: list[str]) -> bool:
    """Whether an answer is the template's default for one that is wrong itself: it needs no complaint of its own."""
    if "" in wrong and value in ("", "_VISIBLE_DEVICES"):
        return True
    return any(text.lower() in value.lower() or value == f"{text[:1]}ccl" for text in wrong if text)


def _near(value: str) -> str:
    """Return the nearest name that would do, an empty text when there is none."""
    name = re.sub(r"[^a-z0-9]+", "_", value.strip().lower()).strip("_")
    return name if NAME.fullmatch(name) else ""


if __name__ == "__main__":
    wrong = problems(json.loads(r"""{{ cookiecutter | tojson }}"""))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    sys.exit(1 if wrong else 0)
