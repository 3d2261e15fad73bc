"""A loop of two components that call each other, as stages: an environment and the policy that acts in it."""

from __future__ import annotations

from collections.abc import Callable

from plugrl.runtime.flow.stages import Item, StageSpec

Round = Callable[[int], Callable[[Item], object]]
"""``round -> (portion -> result)``."""


def loop_stages(
    env: tuple[str, Round], policy: tuple[str, Round], rounds: int, slice_size: int | None = None
) -> list[StageSpec]:
    """Return the stages of ``rounds`` rounds in which the items of a slice go through environment, then policy.

    While the policy looks at one slice, the environment is at work on another. The slices stand in line round by round,
    in a fixed order. ``env`` and ``policy`` are component and work; ``slice_size`` items are a slice (those of the
    phase when omitted). A stage is named ``<component>.<round>``.
    """
    stages: list[StageSpec] = []
    for number in range(rounds):
        for component, work in (env, policy):
            after = (stages[-1].name,) if stages else ()
            stages.append(
                StageSpec(
                    name=f"{component}.{number}", component=component, run=work(number), after=after,
                    size=slice_size, turn=number,
                )
            )  # fmt: skip
    return stages
