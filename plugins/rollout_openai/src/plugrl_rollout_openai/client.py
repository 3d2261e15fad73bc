"""HTTP to one server: calls and streams, every failure an error of ours, no secret in any message."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from plugrl.errors import ConfigError, one_line
from plugrl_rollout_openai.engine import EngineFault, EngineRefusal

_AGAIN = frozenset({408, 409, 425, 429})
_TOLD = 300


class Client:
    """A connection pool to ``url``. Made and used on one event loop."""

    def __init__(self, url: str, *, api_key_env: str | None, connect_timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._key = _key(api_key_env)
        self._key_env = api_key_env
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str | int
    ) -> Any:
        """Return the JSON of an answer, None of an empty one. The caller sets the time.

        Raises EngineFault for what may pass (no connection, a server error), EngineRefusal for what will not.
        """
        try:
            async with self._open().request(method, self.url + path, json=body, params=query or None) as answer:
                text = await answer.text()
                self._check(answer.status, text, path)
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise self._fault(path, error) from None
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            return text

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each server-sent event up to ``[DONE]``; closing it ends the request at the server.

        Raises as :meth:`call`; a stream that is cut off ends with EngineFault.
        """
        try:
            async with self._open().post(self.url + path, json=body) as answer:
                if answer.status != 200:
                    self._check(answer.status, await answer.text(), path)
                while line := await answer.content.readline():
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield self._event(data, line.endswith(b"\n"))
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise self._fault(path, error) from None
        raise EngineFault(f"{path}: the stream was cut off")

    def _event(self, data: bytes, whole: bool) -> Any:
        try:
            value = json.loads(data)
        except ValueError:
            what = "a line that is no JSON" if whole else "half a line"
            raise EngineFault(f"the stream has {what}") from None
        if isinstance(value, dict) and value.get("error"):
            raise self._refusal_or_fault(value["error"])
        return value

    def _refusal_or_fault(self, error: Any) -> Exception:
        """An error within a stream: its own code says whether it may pass."""
        code = error.get("code") if isinstance(error, dict) else None
        text = self._clean(error.get("message", error) if isinstance(error, dict) else error)
        refused = isinstance(code, int) and 400 <= code < 500 and code not in _AGAIN
        return EngineRefusal(f"it refused within the stream: {text}") if refused else EngineFault(text)

    def _check(self, status: int, text: str, path: str) -> None:
        if status < 400:
            return
        told = self._clean(text)
        if status in (401, 403):
            has = f"the key in {self._key_env} was not taken" if self._key_env else "it wants a key"
            raise EngineRefusal(
                f"{self.url}{path} answers {status}: {has}. "
                "rollout.options.api_key_env names the variable that holds it."
            )
        kind = EngineFault if status >= 500 or status in _AGAIN else EngineRefusal
        raise kind(f"{self.url}{path} answers {status}: {told}")

    def _fault(self, path: str, error: Exception) -> EngineFault:
        return EngineFault(f"{self.url}{path}: {self._clean(one_line(error))}")

    def _clean(self, text: object) -> str:
        """One bounded line, without the key."""
        line = " ".join(str(text).split())[:_TOLD]
        return line.replace(self._key, "(redacted)") if self._key else line

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                # The number of requests is bounded by those who draw.
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=2**20,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(0)


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"rollout.options.api_key_env: {variable} is not set where the rollout runs.")
    return value
