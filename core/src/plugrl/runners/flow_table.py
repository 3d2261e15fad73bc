"""The flow of a configuration, resolved without starting anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugrl.config.schema import RunConfig
from plugrl.platforms import get_platform
from plugrl.platforms.visible import visible_count
from plugrl.runners.components import placement, rl_components
from plugrl.runners.embodied_components import TRAINING
from plugrl.runners.embodied_flow import explain_embodied
from plugrl.runners.grpo import grpo_stages
from plugrl.runners.needs import Needs
from plugrl.runners.ppo import ppo_stages
from plugrl.runners.rl_flow import Declare, arrange_rl
from plugrl.runtime.flow import Arrangement
from plugrl.runtime.flow.explain import FlowTable, explain


def stages_of(config: RunConfig) -> Declare:
    """Return the loop's list of stages that a configuration trains by."""
    return ppo_stages if config.uses_critic else grpo_stages


def check_flow(config: RunConfig, devices: Mapping[str, Sequence[int]]) -> Arrangement:
    """Resolve the flow on these devices. Raises ConfigError for every mistake of the section ``flow``."""
    return arrange_rl(config, stages_of(config)(Needs(config)), devices)


def flow_table(config: RunConfig) -> FlowTable:
    """Return what `plugrl config flow` prints, for the devices of this machine."""
    platform = get_platform(config.platform, allow_unavailable=config.cluster.ray_address is not None)
    if config.is_embodied:
        return explain_embodied(config, placement(config, TRAINING, visible_count(platform)))
    devices = placement(config, rl_components(config), visible_count(platform))
    return explain(check_flow(config, devices), "prompts")
