"""From requests to whole samples: side by side, with tries and deadlines, and of no other weights than asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from plugrl.errors import RuntimeTimeout
from plugrl.rollouts.base import FinishReason
from plugrl_rollout_openai.engine import EngineFault, GenerationEngine, Piece, SampleRequest, StaleWeights
from plugrl_rollout_openai.options import EngineOptions

_LONGEST_DELAY_S = 10.0
_FAULTS_TOLD = 4
_TICK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A sample; ``finish`` None when it was given up before its end."""

    request: SampleRequest
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None


@dataclass
class _Seat:
    """An engine and how it does."""

    engine: GenerationEngine
    busy: int = 0
    failures: int = 0
    rest_until: float = 0.0


@dataclass
class _Partial:
    """What there is of a sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Start anew."""
        self.tokens, self.logprobs = [], []


class Drawer:
    """Draws samples from several engines with the same weights.

    A try that fails is repeated, by another engine where there is one, until the sample's time is over. Engines that
    failed rest for a while. ``repair`` brings an engine to the weights in force again; it raises EngineFault.
    """

    def __init__(
        self,
        engines: Sequence[GenerationEngine],
        options: EngineOptions,
        repair: Callable[[GenerationEngine], Awaitable[None]],
    ) -> None:
        self._seats = [_Seat(engine) for engine in engines]
        self._options = options
        self._repair = repair
        self._free = asyncio.Condition()
        self._tasks: list[asyncio.Task[Drawn]] = []
        self._giving_up = False
        self.retries = 0

    async def draw(self, requests: Sequence[SampleRequest], label: str) -> list[Drawn]:
        """Return the samples in the order of the requests, drawn with the weights of ``label`` alone.

        Raises RuntimeTimeout, which tells of the last faults, when a sample's time is over, and what an engine refuses.
        The others are given up then.
        """
        self._giving_up = False
        self._tasks = [asyncio.create_task(self._sample(request, label)) for request in requests]
        try:
            return list(await asyncio.gather(*self._tasks))
        finally:
            self._giving_up = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def give_up(self) -> None:
        """Let :meth:`draw` return at once with what there is."""
        self._giving_up = True
        for task in self._tasks:
            task.cancel()

    async def _sample(self, request: SampleRequest, label: str) -> Drawn:
        partial = _Partial()
        try:
            finish = await self._until_whole(request, label, partial)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._giving_up or task is None:
                raise
            task.uncancel()
            finish = None
        return Drawn(request=request, tokens=tuple(partial.tokens), logprobs=tuple(partial.logprobs), finish=finish)

    async def _until_whole(self, request: SampleRequest, label: str, partial: _Partial) -> FinishReason:
        faults = list[str]()
        deadline: float | None = None
        while True:
            seat = await self._take_seat(deadline, faults, request)
            deadline = deadline or _now() + self._options.sample_timeout_s
            try:
                finish = await self._try(seat.engine, request, label, partial, deadline)
                seat.failures = 0
                return finish
            except StaleWeights as error:
                partial.clear()
                self._note(seat, faults, error)
                await self._mend(seat, faults, deadline)
            except EngineFault as error:
                self._note(seat, faults, error)
                if not self._options.continue_broken:
                    partial.clear()
            finally:
                await self._leave(seat)

    def _note(self, seat: _Seat, faults: list[str], error: Exception) -> None:
        """Let an engine rest, longer each time."""
        self.retries += 1
        delay = min(self._options.retry_delay_s * 2**seat.failures, _LONGEST_DELAY_S)
        seat.failures += 1
        seat.rest_until = _now() + delay
        faults.append(f"{seat.engine.title}: {error}")

    async def _mend(self, seat: _Seat, faults: list[str], deadline: float) -> None:
        try:
            async with asyncio.timeout(max(deadline - _now(), 0.01)):
                await self._repair(seat.engine)
            seat.rest_until = 0.0
        except (EngineFault, TimeoutError) as error:
            faults.append(f"{seat.engine.title}: its weights could not be loaded again ({error or 'no answer'})")

    async def _take_seat(self, deadline: float | None, faults: list[str], request: SampleRequest) -> _Seat:
        """Wait for an engine with room that does not rest, the least busy one. Raises RuntimeTimeout."""
        async with self._free:
            while True:
                now = _now()
                if deadline is not None and now >= deadline:
                    told = "; ".join(faults[-_FAULTS_TOLD:])
                    raise RuntimeTimeout(
                        f"Sample {request.id} was not there within {self._options.sample_timeout_s:g} s "
                        f"(rollout.options.sample_timeout_s), {len(faults)} tries failed. The last: {told}."
                    )
                ready = [seat for seat in self._seats if seat.rest_until <= now]
                with_room = [seat for seat in ready if seat.busy < self._options.concurrency]
                if with_room:
                    seat = min(with_room, key=lambda item: (item.failures > 0, item.busy))
                    seat.busy += 1
                    return seat
                awake = [seat.rest_until for seat in self._seats if seat.rest_until > now]
                until = min([*awake, *([deadline] if deadline else [])], default=now + _TICK_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(max(until - now, 0.001), _TICK_S)):
                        await self._free.wait()

    async def _leave(self, seat: _Seat) -> None:
        async with self._free:
            seat.busy -= 1
            self._free.notify()

    async def _try(
        self, engine: GenerationEngine, request: SampleRequest, label: str, partial: _Partial, deadline: float
    ) -> FinishReason:
        """Read one stream to its end into ``partial``."""
        rest = request.behind(tuple(partial.tokens)) if partial.tokens else request
        said = False
        async with aclosing(engine.stream(rest)) as stream:
            while True:
                piece = await self._next(stream, deadline)
                if piece.labels is not None:
                    said = True
                    if piece.labels - {label}:
                        raise StaleWeights(f"weights {sorted(piece.labels)} drew a sample, in force are {label}")
                if len(piece.tokens) != len(piece.logprobs):
                    raise EngineFault(f"{len(piece.tokens)} tokens came with {len(piece.logprobs)} log-probabilities")
                partial.tokens += piece.tokens
                partial.logprobs += piece.logprobs
                if piece.finish is not None:
                    break
        if piece.finish == "abort":
            raise EngineFault(f"the engine gave the sample up after {len(partial.tokens)} tokens")
        _check_length(len(partial.tokens), request.params.max_new_tokens, piece.finish)
        if not said:
            await self._check_label(engine, label)
        return piece.finish

    async def _next(self, stream: AsyncGenerator[Piece, None], deadline: float) -> Piece:
        """Return the next piece. Raises EngineFault for silence, and for a stream that ends."""
        patience = min(self._options.idle_timeout_s, max(deadline - _now(), 0.01))
        try:
            async with asyncio.timeout(patience):
                return await anext(stream)
        except TimeoutError:
            raise EngineFault(f"no token came for {patience:.3g} s") from None
        except StopAsyncIteration:
            raise EngineFault("the stream ended before the sample did") from None

    async def _check_label(self, engine: GenerationEngine, label: str) -> None:
        """Ask an engine whose samples do not say: labels are never used twice, so the same one means no change."""
        found = await engine.label()
        if found is not None and found != label:
            raise StaleWeights(f"its weights are {found}, in force are {label}")


def _check_length(count: int, limit: int, finish: FinishReason) -> None:
    if count == 0 or count > limit or (finish == "length" and count < limit):
        raise EngineFault(f"a sample of {count} tokens ended by {finish!r}, the limit was {limit}")


def _now() -> float:
    return asyncio.get_running_loop().time()
