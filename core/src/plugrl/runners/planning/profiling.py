"""Measuring the components of a configuration, one at a time, by the verbs of a real step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from plugrl.config.schema import RunConfig
from plugrl.models.processor import TextProcessor
from plugrl.platforms.devices import groups_per_device
from plugrl.rewards.manager import RewardManager
from plugrl.runners.components import Component, Components, launch
from plugrl.runners.planning.progress import Progress
from plugrl.runners.planning.space import PlanSpace, measured_chunks, measured_counts
from plugrl.runners.planning.verbs import AloneVerbs, portions_of
from plugrl.runners.portions import Portions
from plugrl.runners.prompts import PromptBatch, PromptData
from plugrl.runtime import RaySession
from plugrl.runtime.planner import ComponentProfile, Loading, Point, Profile
from plugrl.workers.groups import RolloutGroup, TrainingGroup

REPEATS = 3
"""Measurements of a point, of which the median counts, after one that warms up."""
_LONG_S = 20.0
"""A point whose first run takes longer is measured once more only."""
_SCHEDULE_STEPS = 10_000
"""Length of the learning-rate schedule of what is measured: longer than it lives."""


@dataclass(frozen=True)
class Measured:
    """What was measured. ``sync_us`` is by the actor's number of devices, and part of its times in ``profile``.

    capacity_mib: memory of a device, 0 where nothing limits it. notes: what a person should know of the figures.
    """

    profile: Profile
    sync_us: dict[int, int]
    capacity_mib: int
    notes: tuple[str, ...]


class Profiler:
    """Launches each component alone on several numbers of devices and measures time, memory, loading and sync."""

    def __init__(
        self,
        config: RunConfig,
        space: PlanSpace,
        session: RaySession,
        data: PromptData,
        processor: TextProcessor,
        reward: RewardManager,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.space, self.session = config, space, session
        self.processor, self.reward = processor, reward
        self._batches = _batches(data)
        self._rows: Portions
        self._sync: dict[int, float] = {}
        self._whole_mib: list[int] = []
        self._peaks_mib: list[int] = []
        self._notes: list[str] = []
        units = sum(
            len(measured_counts(space.counts[name])) * (1 + len(measured_chunks(space.own_chunks[name])))
            for name in space.components
        )
        self._progress = Progress(units, say)

    def run(self) -> Measured:
        """Measure everything. Raises what workers raise."""
        found = [self._component(name) for name in self.space.components]
        profiles = [self._with_sync(profile) if profile.name == "actor" else profile for profile in found]
        sync = {count: round(seconds * 1e6) for count, seconds in self._sync.items()}
        whole = self.config.cluster.device_memory_mib or min((mib for mib in self._whole_mib if mib), default=0)
        self._note_memory(whole)
        return Measured(Profile(tuple(profiles)), sync, whole, tuple(dict.fromkeys(self._notes)))

    def _note_memory(self, whole_mib: int) -> None:
        if not any(self._peaks_mib):
            self._notes.append(
                f"{self.session.platform_name} does not tell how much memory work takes: a component counts with its "
                "weights, gradients and optimizer, or with flow.memory_mib."
            )
        if not whole_mib:
            self._notes.append(
                "Nothing limits memory here: a device counts as large as everything together "
                "(cluster.device_memory_mib sets a limit)."
            )

    # ----------------------------------------------------------------- one component
    def _component(self, name: Component) -> ComponentProfile:
        points: list[Point] = []
        loadings: list[Loading] = []
        for count in measured_counts(self.space.counts[name]):
            self._progress.begin(f"{name} on {count} {'device' if count == 1 else 'devices'}: starting")
            with self._launched(name, count) as components:
                self._progress.done()
                more, loading = self._measure(name, count, components)
            points += more
            loadings.append(loading)
        return ComponentProfile(name, tuple(points), tuple(loadings))

    def _measure(self, name: Component, count: int, components: Components) -> tuple[list[Point], Loading]:
        group = _group(components, name)
        verbs = AloneVerbs(self.config, components, self.processor, self.reward)
        times: dict[int, float] = {}
        peaks: dict[int, int] = {}
        group.device_memory()
        for chunk in measured_chunks(self.space.own_chunks[name]):
            self._progress.begin(f"{name} on {count}: {chunk} prompts")
            times[chunk] = self._time(verbs, name, chunk)
            memory = group.device_memory()
            peaks[chunk] = memory.peak_mib
            self._whole_mib.append(memory.whole_mib)
            self._peaks_mib.append(memory.peak_mib)
            self._progress.done()
        resident = group.memory_mib()[1]
        declared = self.config.flow.memory_mib.get(name)
        if declared is not None:
            resident, peaks = declared, {}
        loading = Loading(count, resident, *_moves(group))
        if name == "actor" and components.rollout is not None:
            self._sync[count] = self._sync_time(components.rollout, components.actor)
        if name == "rollout" and count == measured_counts(self.space.counts[name])[0]:
            self._keep_rows(verbs)
        return [
            Point(count, chunk, round(seconds * 1e6), max(0, peaks.get(chunk, 0) - resident))
            for chunk, seconds in times.items()
        ], loading

    def _time(self, verbs: AloneVerbs, name: Component, chunk: int) -> float:
        """Return the median time of some runs with different prompts, the first of which does not count."""
        stages = self.space.stages_of(name)
        rows = None if name == "rollout" else self._rows
        first = verbs.timed(stages, self._batches[0], rows, chunk)
        repeats = REPEATS if first < _LONG_S else 1
        return median(verbs.timed(stages, batch, rows, chunk) for batch in self._batches[1 : 1 + repeats])

    def _keep_rows(self, verbs: AloneVerbs) -> None:
        """Draw the samples that all other components are measured with."""
        experience = verbs.sample_all(self._batches[0], self.space.stages)
        sizes = [chunk for chunks in self.space.own_chunks.values() for chunk in chunks]
        self._rows = portions_of(experience, self.space.items, sizes, self.processor.pad_token_id)
        if verbs.made_up_scores:
            self._notes.append(
                "No prompt had two different rewards, so that nothing was filtered: the actor may be faster at first."
            )

    def _sync_time(self, rollout: RolloutGroup, actor: TrainingGroup | None) -> float:
        assert actor is not None
        times = []
        for version in range(1, REPEATS + 1):
            began = time.perf_counter()
            rollout.update_weights(actor, version)
            times.append(time.perf_counter() - began)
        return median(times[1:])  # the first one connects, and sends what never changes

    def _with_sync(self, profile: ComponentProfile) -> ComponentProfile:
        """Add the way of the weights to the actor's times, to each chunk its share."""
        if not self._sync:
            self._notes.append("The way of the weights was not measured: no device was free for a rollout.")
            return profile
        longest = max(self._sync.values())
        points = [
            Point(
                point.devices, point.chunk, work_mib=point.work_mib,
                time_us=point.time_us
                + round(self._sync.get(point.devices, longest) * 1e6 * point.chunk / self.space.items),
            )
            for point in profile.points
        ]  # fmt: skip
        return ComponentProfile(profile.name, tuple(points), profile.loadings)

    @contextmanager
    def _launched(self, name: Component, count: int) -> Iterator[Components]:
        """Start a component alone; beside the actor, a rollout that does nothing but take its weights."""
        placement: dict[str, object] = {name: f"0-{count - 1}"}
        needed: tuple[Component, ...] = (name,)
        apart = count < self.space.devices
        if name == "actor" and (apart or groups_per_device(self.session.platform, 2) > 1):
            needed = ("actor", "rollout")
            placement["rollout"] = str(count if apart else 0)
        cluster = self.config.cluster.model_copy(update={"component_placement": placement})
        config = self.config.model_copy(update={"cluster": cluster})
        components = launch(self.session, config, needed, total_steps=_SCHEDULE_STEPS)
        try:
            yield components
        finally:
            components.close()


def _group(components: Components, name: Component) -> TrainingGroup | RolloutGroup:
    group: TrainingGroup | RolloutGroup | None = getattr(components, name)
    assert group is not None
    return group


def _moves(group: TrainingGroup | RolloutGroup) -> tuple[int, int]:
    """Return the microseconds in which a component comes to its devices and leaves; the second time counts."""
    for _ in range(2):
        began = time.perf_counter()
        group.reside("away")
        away = time.perf_counter()
        group.reside("all")
        back = time.perf_counter()
    return round((back - away) * 1e6), round((away - began) * 1e6)


def _batches(data: PromptData) -> list[PromptBatch]:
    """Return the batches of the first steps; the data stand where they stood."""
    state = data.sampler.state_dict()
    batches = [data.next_batch(step) for step in range(1, REPEATS + 2)]
    data.sampler.load_state_dict(state)
    return batches
