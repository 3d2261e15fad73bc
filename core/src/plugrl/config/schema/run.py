"""The whole configuration of a run."""

from __future__ import annotations

from plugrl.config.schema.actor import ActorConfig, CriticConfig, RefConfig
from plugrl.config.schema.algorithm import AlgorithmConfig
from plugrl.config.schema.base import Section
from plugrl.config.schema.cluster import ClusterConfig, PluginsConfig
from plugrl.config.schema.data import DataConfig
from plugrl.config.schema.demos import DemosConfig
from plugrl.config.schema.env import EnvSection
from plugrl.config.schema.flow import FlowConfig
from plugrl.config.schema.model import ModelConfig
from plugrl.config.schema.rollout import RewardConfig, RolloutConfig
from plugrl.config.schema.trainer import SftConfig, TrainerConfig
from plugrl.config.schema.weight_sync import WeightSyncConfig

VALUE_ESTIMATORS = frozenset({"gae"})
"""Advantage estimators that need a critic."""


def wants_critic(enable: bool | None, adv_estimator: str) -> bool:
    """Whether a critic is trained: as the configuration says, else where the estimator needs values."""
    return adv_estimator in VALUE_ESTIMATORS if enable is None else bool(enable)


class RunConfig(Section):
    """Everything that decides what a run does."""

    platform: str | None = None
    """Registered name of the accelerator; null chooses by VERL_PLATFORM and then by what is available."""

    plugins: PluginsConfig = PluginsConfig()
    """Which plugins are loaded."""

    cluster: ClusterConfig = ClusterConfig()
    """Where the components run."""

    flow: FlowConfig = FlowConfig()
    """In which portions a step goes through them."""

    model: ModelConfig = ModelConfig()
    """The policy."""

    data: DataConfig = DataConfig()
    """The prompts."""

    env: EnvSection = EnvSection()
    """The environments, instead of prompts."""

    demos: DemosConfig = DemosConfig()
    """Demonstrations of the environment's expert."""

    actor: ActorConfig = ActorConfig()
    """Training of the policy."""

    critic: CriticConfig = CriticConfig()
    """Training of the value model."""

    ref: RefConfig = RefConfig()
    """The frozen reference."""

    rollout: RolloutConfig = RolloutConfig()
    """Sampling of responses."""

    weight_sync: WeightSyncConfig = WeightSyncConfig()
    """How new weights reach the rollout."""

    reward: RewardConfig = RewardConfig()
    """How a response is judged."""

    algorithm: AlgorithmConfig = AlgorithmConfig()
    """How rewards become advantages."""

    sft: SftConfig = SftConfig()
    """Supervised training."""

    trainer: TrainerConfig = TrainerConfig()
    """The run as a whole."""

    @property
    def is_embodied(self) -> bool:
        """Whether the policy acts in environments, instead of answering prompts."""
        return self.env.train is not None or self.env.eval is not None

    @property
    def uses_critic(self) -> bool:
        """Whether a value model is trained: as `critic.enable` says, else as the estimator needs."""
        return wants_critic(self.critic.enable, self.algorithm.adv_estimator)

    @property
    def uses_reference(self) -> bool:
        """Whether log-probabilities of the frozen reference are needed."""
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def reference_is_actor(self) -> bool:
        """Whether the actor without its adapter is the reference, so that no other copy of the weights is needed.

        That is so where a new adapter, which changes nothing at first, is trained, and `ref` has no devices of its own.
        """
        placed = {name.strip() for key in self.cluster.component_placement for name in str(key).split(",")}
        return self.model.starts_adapter and "ref" not in placed
