"""The part of a rollout backend that all asynchronous engines share: states, versions, weights, samples."""

from __future__ import annotations

import asyncio
import os
import uuid
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from plugrl.errors import ConfigError, PlugRLError, RuntimeTimeout, UnsupportedCapability, WeightSyncError
from plugrl.rollouts.base import Completion, RolloutBackend, SamplingParams
from plugrl_rollout_openai.drawing import Drawer, Drawn
from plugrl_rollout_openai.engine import EngineFault, GenerationEngine, SampleRequest, is_exact, mixed_seed
from plugrl_rollout_openai.event_loop import EventLoop
from plugrl_rollout_openai.options import EngineOptions
from plugrl_rollout_openai.weights_folder import WeightsFolder, read_folder

T = TypeVar("T")
_ADAPTER = "base_model.model."
"""What PEFT puts before the names of an adapter's tensors."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A sample that was given up; tokens and log-probabilities so far, drawn with weights of ``weight_version``."""

    prompt_index: int
    sample_index: int
    request: SampleRequest
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int


class GenerationAborted(PlugRLError):
    """Sampling was given up on request; ``done`` and ``unfinished`` are for :meth:`EngineBackend.resume`."""

    def __init__(self, done: Sequence[Completion], unfinished: Sequence[Unfinished]) -> None:
        super().__init__(f"Sampling was given up: {len(done)} samples are whole, {len(unfinished)} are not.")
        self.done = tuple(done)
        self.unfinished = tuple(unfinished)


class EngineBackend(RolloutBackend):
    """Drives one or several engines that have the same weights.

    Derive from it and say which engines there are. Until ``initialize`` and between ``sleep`` and ``wake`` it refuses
    to generate; after a load of weights that failed half-way too, until one succeeds.
    """

    options_class: type[EngineOptions] = EngineOptions

    def __init__(self, model_config: Any, rollout_config: Any) -> None:
        super().__init__(model_config, rollout_config)
        self.options = options_of(rollout_config, self.options_class)
        self._loop: EventLoop | None = None
        self._folder: WeightsFolder | None = None
        self._engines: list[GenerationEngine] = []
        self._drawer: Drawer | None = None
        self._nonce = uuid.uuid4().hex[:12]
        self._version = 0
        self._adapter: tuple[str, Path] | None = None
        self._asleep = False
        self._reload = False
        self._refusal = "it was not initialised"

    @abstractmethod
    def make_engines(self, folder: WeightsFolder) -> list[GenerationEngine]:
        """Return the engines, not started."""

    @property
    def start_timeout_s(self) -> float:
        """Seconds until all engines must have started."""
        return self.options.control_timeout_s

    # ------------------------------------------------------------------------------------------------------------ life
    def initialize(self) -> None:
        """Start the engines and label their weights."""
        self._loop = EventLoop(f"{type(self).__name__}-loop")
        try:
            self._folder = WeightsFolder(self.model_config, self.options.weights_dir, f"{os.getpid()}-{self._nonce}")
            self._engines = self.make_engines(self._folder)
            for engine in self._engines:
                self._control(self._retried(engine.start, self.start_timeout_s), "Starting the engine", True)
            self._drawer = self._run(self._make_drawer(), "")
            self._check_versions()
            self._control(self._each(lambda engine: engine.mark(self._label)), "Labelling the weights", True)
        except BaseException:
            self.close()
            raise
        self._refusal = ""

    async def _make_drawer(self) -> Drawer:
        return Drawer(self._engines, self.options, self._repair)

    def _check_versions(self) -> None:
        found = {engine.version for engine in self._engines if engine.version}
        if len(found) > 1:
            raise ConfigError(f"rollout.options: the engines are of different versions: {', '.join(sorted(found))}.")

    @property
    def engine_version(self) -> str:
        """Of all its engines."""
        return next((engine.version for engine in self._engines if engine.version), "")

    def sleep(self) -> None:
        """Give the memory of devices back. The weights are loaded again before the next sample."""
        if self._loop is not None and not self._asleep:
            self._control(self._each(lambda engine: engine.sleep()), "Putting the engine to sleep")
            self._reload = True
        self._asleep = True

    def wake(self) -> None:
        """Take the memory again."""
        if self._loop is not None and self._asleep:
            self._control(self._each(lambda engine: engine.wake()), "Waking the engine")
        self._asleep = False

    def close(self) -> None:
        """Let engines and files go; generating is refused from now on."""
        self._refusal = "it was closed"
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        try:
            for engine in self._engines:
                loop.run(engine.close(), f"Closing {engine.title}", self.options.control_timeout_s)
        finally:
            self._engines = []
            loop.close()
            if self._folder is not None:
                self._folder.close()

    # --------------------------------------------------------------------------------------------------------- weights
    @property
    def weight_version(self) -> int:
        """Version of the weights in use."""
        return self._version

    @property
    def _label(self) -> str:
        return f"{self._nonce}.{self._version}"

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace all weights from a stream under published names.

        Raises WeightSyncError when a name is unknown or lacking, a shape differs, the stream breaks or an engine does
        not take them; from then on :meth:`generate` refuses until a load succeeds.
        """
        folder = self._files("load weights")
        self._refusal = f"loading the weights of version {version} failed half-way"
        self._take(folder.write(tensors, version), version)

    def adopt_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace all weights by these. Raises WeightSyncError, before anything is changed where they do not fit."""
        folder = self._files("load weights")
        written = folder.write(tensors.items(), version)
        self._refusal = f"loading the weights of version {version} failed half-way"
        self._take(written, version)

    @property
    def merges_adapters(self) -> bool:
        """Whether the engine applies adapters (``rollout.options.native_lora``)."""
        return self.options.native_lora

    def load_adapter(self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], version: int) -> None:
        """Hand over the adapter alone; the weights under it only where they are not those in use."""
        folder = self._files("load an adapter")
        base = {name: tensor for name, tensor in tensors.items() if not name.startswith(_ADAPTER)}
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(_ADAPTER)}
        written = None if folder.holds(base) else folder.write(base.items(), version)
        self._refusal = f"loading the adapter of version {version} failed half-way"
        if written is not None:
            self._take(written, version)
            self._refusal = f"loading the adapter of version {version} failed half-way"
        self._take_adapter(folder.write_adapter(own, adapter, version), version)

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights that were handed over last, from the files that the engine read them from.

        Raises UnsupportedCapability before the first and while an adapter lies over them: engines show none themselves.
        """
        if self._folder is None or self._folder.current is None or self._adapter is not None:
            raise UnsupportedCapability(f"{type(self).__name__} can only show weights that were handed over whole.")
        yield from read_folder(self._folder.current)

    def _take(self, written: Path, version: int) -> None:
        """Bring a written folder into the engines; it is dropped when that fails."""
        assert self._folder is not None
        label = f"{self._nonce}.{version}"
        try:
            self._control(self._each(lambda engine: self._load(engine, written, label)), f"Loading version {version}")
        except PlugRLError as error:
            self._folder.discard(written)
            raise WeightSyncError(f"Weights of version {version} did not load: {error}") from error
        self._folder.keep(written)
        self._version, self._adapter, self._reload, self._refusal = version, None, False, ""

    async def _load(self, engine: GenerationEngine, folder: Path, label: str) -> None:
        await engine.load(folder, label)
        found = await engine.label()
        if found != label:
            raise EngineFault(f"its weights are {found} after they were replaced by {label}")

    def _take_adapter(self, written: Path, version: int) -> None:
        name, label = f"plugrl-{self._nonce}-{version}", f"{self._nonce}.{version}"
        old = self._adapter[0] if self._adapter else None
        try:
            if self._reload:
                self._control(self._each(self._restore_base), "Loading the weights under the adapter again")
                old = None
            self._control(
                self._each(lambda engine: engine.load_adapter(written, name, label, old)), f"Loading version {version}"
            )
        except PlugRLError as error:
            raise WeightSyncError(f"The adapter of version {version} did not load: {error}") from error
        self._version, self._adapter, self._reload, self._refusal = version, (name, written), False, ""

    async def _restore_base(self, engine: GenerationEngine) -> None:
        """Load the last whole weights, or those of the start."""
        assert self._folder is not None
        await engine.load(self._folder.current or self._folder.start(), self._label)

    async def _repair(self, engine: GenerationEngine) -> None:
        """Bring an engine whose weights are not those in force, since it was started anew, to them again."""
        await self._restore_base(engine)
        if self._adapter is not None:
            name, written = self._adapter
            await engine.load_adapter(written, name, self._label, None)
        found = await engine.label()
        if found != self._label:
            raise EngineFault(f"its weights are {found} after they were replaced by {self._label}")

    # ------------------------------------------------------------------------------------------------------ generation
    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        """Sample ``params.n`` completions of each prompt, ordered by prompt, then sample.

        Sample j of prompt i has a seed that depends on (seeds[i], j) alone. Where an engine cannot say a
        log-probability as a completion has it (see :func:`plugrl_rollout_openai.engine.is_exact`), it is NaN.

        Raises WeightSyncError while the weights are not whole, ValueError for empty prompts, RuntimeTimeout for a
        sample that no engine gave in time, GenerationAborted after :meth:`abort`.
        """
        self._files("generate")
        _check(prompts, seeds)
        requests = [
            SampleRequest(
                id=f"{self._nonce}-{self._version}-{index}-{sample}-{uuid.uuid4().hex[:8]}",
                prompt=tuple(map(int, prompt)), params=params, seed=mixed_seed(int(seed), sample),
            )
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
            for sample in range(params.n)
        ]  # fmt: skip
        places = [(index, sample) for index in range(len(prompts)) for sample in range(params.n)]
        return self._completed(self._draw(requests), places)

    def resume(self, aborted: GenerationAborted) -> list[Completion]:
        """Finish what :meth:`abort` left, and return it with what was done already, in order.

        A sample goes on behind its tokens where the weights are still those that drew them, and is drawn anew
        otherwise: no sample has tokens of two versions.
        """
        self._files("generate")
        fresh = [item.weight_version != self._version or not item.tokens for item in aborted.unfinished]
        requests = [
            item.request if anew else item.request.behind(item.tokens)
            for item, anew in zip(aborted.unfinished, fresh, strict=True)
        ]
        whole = []
        for drawn, item, anew in zip(self._draw(requests), aborted.unfinished, fresh, strict=True):
            before = ((), ()) if anew else (item.tokens, item.logprobs)
            whole.append(
                replace(
                    drawn, request=item.request, tokens=before[0] + drawn.tokens, logprobs=before[1] + drawn.logprobs
                )
            )
        places = [(item.prompt_index, item.sample_index) for item in aborted.unfinished]
        return self._completed(whole, places, aborted.done)

    def abort(self) -> None:
        """Let the :meth:`generate` that runs in another thread end with GenerationAborted."""
        if self._loop is not None and self._drawer is not None:
            self._loop.call(self._drawer.give_up)

    def _draw(self, requests: Sequence[SampleRequest]) -> list[Drawn]:
        assert self._drawer is not None
        if self._reload:
            self._control(self._each(self._repair), "Loading the weights again")
            self._reload = False
        name = self._adapter[0] if self._adapter else None
        named = [replace(request, adapter=name) for request in requests]
        return self._run(self._drawer.draw(named, self._label), "Sampling")

    def _completed(
        self, drawn: Sequence[Drawn], places: Sequence[tuple[int, int]], done: Sequence[Completion] = ()
    ) -> list[Completion]:
        """Return completions in order. Raises GenerationAborted when some have no end."""
        whole, unfinished = list(done), list[Unfinished]()
        for item, (prompt, sample) in zip(drawn, places, strict=True):
            if item.finish is None:
                unfinished.append(
                    Unfinished(
                        prompt_index=prompt, sample_index=sample, request=item.request, tokens=item.tokens,
                        logprobs=item.logprobs, weight_version=self._version,
                    )
                )  # fmt: skip
                continue
            logprobs = torch.tensor(item.logprobs, dtype=torch.float32)
            if not is_exact(self._engines[0].logprobs_mode, item.request.params):
                logprobs.fill_(torch.nan)
            whole.append(
                Completion(
                    prompt_index=prompt, sample_index=sample, tokens=item.tokens, logprobs=logprobs,
                    finish_reason=item.finish, weight_version=self._version,
                )
            )  # fmt: skip
        if unfinished:
            raise GenerationAborted(whole, unfinished)
        return sorted(whole, key=lambda item: (item.prompt_index, item.sample_index))

    # --------------------------------------------------------------------------------------------------------- helpers
    def _files(self, what: str) -> WeightsFolder:
        """Return the folder of weights. Raises WeightSyncError while nothing can be done."""
        half_way = self._refusal.endswith("half-way") and what != "generate"
        if self._folder is None or self._asleep or (self._refusal and not half_way):
            raise WeightSyncError(f"The rollout cannot {what}: {self._refusal or 'it sleeps'}.")
        return self._folder

    def _run(self, work: Coroutine[Any, Any, T], what: str, timeout: float | None = None) -> T:
        assert self._loop is not None
        return self._loop.run(work, what, timeout)

    def _control(self, work: Coroutine[Any, Any, T], what: str, starting: bool = False) -> T:
        limit = self.start_timeout_s if starting else self.options.control_timeout_s
        return self._run(work, what, limit + 5.0)

    async def _each(self, work: Callable[[GenerationEngine], Coroutine[Any, Any, None]]) -> None:
        """Do something with every engine at once, each tried again until its time is over."""
        limit = self.options.control_timeout_s
        calls = [self._retried(partial(work, engine), limit, engine) for engine in self._engines]
        # All come to their end, so that none is at work when the failure of one is told.
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _retried(
        self, work: Callable[[], Coroutine[Any, Any, None]], limit: float, engine: GenerationEngine | None = None
    ) -> None:
        """Call ``work`` until it raises no EngineFault. Raises RuntimeTimeout with the last fault."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + limit, self.options.retry_delay_s
        last: Exception | str = "no answer"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await work()
            except EngineFault as error:
                last = error
            except TimeoutError:
                pass
            if loop.time() + delay >= deadline:
                title = f"{engine.title}: " if engine else ""
                raise RuntimeTimeout(f"{title}not done within {limit:g} s, the last answer: {last}.")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10.0)


def options_of(config: Any, schema: type[EngineOptions]) -> Any:
    """Return ``rollout.options`` as its schema."""
    value = config.get("options") if isinstance(config, Mapping) else getattr(config, "options", None)
    return value if isinstance(value, schema) else schema.model_validate(dict(value or {}))


def training_sampling(config: Any) -> SamplingParams:
    """Return how training samples, as far as the configuration says."""
    keys = {"temperature": 1.0, "top_k": -1, "top_p": 1.0}
    read = config.get if isinstance(config, Mapping) else lambda key, default: getattr(config, key, default)
    return SamplingParams(max_new_tokens=1, **{key: read(key, default) for key, default in keys.items()})


def _check(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts came with {len(seeds)} seeds; each prompt needs one.")
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"Prompt {index} is empty: there is nothing to continue.")
        if min(prompt) < 0:
            raise ValueError(f"Prompt {index} holds ids below 0.")
