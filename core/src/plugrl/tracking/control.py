"""Asking a run that is at work to do something, through its folder: files that only its owner can write.

A request is a file of its own; the run answers beside it. Both appear whole, since they are renamed into place.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from plugrl.errors import RuntimeTimeout, UserError
from plugrl.tracking.files import write_atomic

_FOLDER = "control"
_REQUEST, _ANSWER = ".request.json", ".answer.json"
_TICK_S = 0.2
_PRIVATE = 0o700


class ScaleRequest(BaseModel):
    """Let a component run on other devices; ``devices`` is written as in ``cluster.component_placement``.

    timeout_s: seconds that all of it may take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    component: str
    devices: str
    timeout_s: float = 600.0


class ScaleAnswer(BaseModel):
    """How far a request has come; ``message`` is for people."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    state: Literal["creating", "done", "failed"]
    message: str


class ControlFolder:
    """The requests to one run. The run takes and answers them, others ask."""

    def __init__(self, run: Path) -> None:
        self.path = run / _FOLDER

    # ----------------------------------------------------------------- the run
    def take(self) -> tuple[str, ScaleRequest] | None:
        """Return the oldest request that has no answer yet, with its name; None when there is none.

        What is no request, or is not this user's, is passed over. One whose time is over is removed: who asked is gone.
        """
        found = []
        for path in self.path.glob(f"*{_REQUEST}") if self.path.is_dir() else ():
            name = path.name.removesuffix(_REQUEST)
            try:
                facts = path.lstat()
                if facts.st_uid != os.getuid() or path.is_symlink():
                    continue
                request = ScaleRequest.model_validate_json(path.read_text())
                if time.time() - facts.st_mtime > request.timeout_s:
                    path.unlink()
                    self._answer_of(name).unlink(missing_ok=True)
                elif not self._answer_of(name).exists():
                    found.append((facts.st_mtime_ns, name, request))
            except (OSError, ValidationError):
                continue  # withdrawn in between, or somebody else's file
        return min(found, key=lambda item: item[:2])[1:] if found else None

    def answer(self, name: str, answer: ScaleAnswer) -> None:
        """Tell who asked how far it is."""
        if self.path.is_dir():
            write_atomic(self._answer_of(name), answer.model_dump_json())

    # ----------------------------------------------------------------- others
    def ask(self, request: ScaleRequest) -> str:
        """Write a request and return its name. Raises UserError when the folder cannot be written."""
        name = secrets.token_hex(8)
        try:
            self.path.mkdir(mode=_PRIVATE, exist_ok=True)
            write_atomic(self._request_of(name), request.model_dump_json())
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror}.") from error
        return name

    def wait(self, name: str, timeout_s: float, say: Callable[[str], None], alive: Callable[[], bool]) -> ScaleAnswer:
        """Wait for the end of a request, saying what comes on the way, and remove its files.

        Raises RuntimeTimeout, and UserError when the run ends first.
        """
        deadline, said = time.monotonic() + timeout_s, ""
        try:
            while time.monotonic() < deadline:
                answer = self._read(name)
                if answer is not None and answer.state != "creating":
                    return answer
                if answer is not None and answer.message != said:
                    said = answer.message
                    say(said)
                if not alive():
                    raise UserError(f"The run in {self.path.parent} ended before it did what was asked.")
                time.sleep(_TICK_S)
            raise RuntimeTimeout(f"The run in {self.path.parent} did not answer within {timeout_s:g} s.")
        finally:
            self._request_of(name).unlink(missing_ok=True)
            self._answer_of(name).unlink(missing_ok=True)

    def _read(self, name: str) -> ScaleAnswer | None:
        try:
            return ScaleAnswer.model_validate(json.loads(self._answer_of(name).read_text()))
        except FileNotFoundError:
            return None

    def _request_of(self, name: str) -> Path:
        return self.path / f"{name}{_REQUEST}"

    def _answer_of(self, name: str) -> Path:
        return self.path / f"{name}{_ANSWER}"
