"""The schema of the configuration: one frozen pydantic model for each section."""

from __future__ import annotations

from plugrl.config.schema.actor import ActorConfig, CriticConfig, PolicyLossConfig, RefConfig
from plugrl.config.schema.algorithm import AlgorithmConfig, KlControlConfig
from plugrl.config.schema.base import Section
from plugrl.config.schema.cluster import ClusterConfig, PluginsConfig
from plugrl.config.schema.data import DataConfig
from plugrl.config.schema.demos import DemosConfig
from plugrl.config.schema.env import DemosEnvConfig, EnvConfig, EnvSection, EvalEnvConfig, TrainEnvConfig
from plugrl.config.schema.flow import AsynchronousConfig, FlowConfig, PhaseConfig
from plugrl.config.schema.model import EmbodiedModelConfig, LoraConfig, ModelConfig, OpenModelConfig
from plugrl.config.schema.optim import CheckpointConfig, OptimConfig
from plugrl.config.schema.parallelism import ParallelismConfig
from plugrl.config.schema.rollout import RewardConfig, RolloutConfig, ValidationSampling
from plugrl.config.schema.run import RunConfig
from plugrl.config.schema.trainer import SftConfig, TrainerConfig

__all__ = [
    "ActorConfig",
    "AlgorithmConfig",
    "AsynchronousConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "CriticConfig",
    "DataConfig",
    "DemosConfig",
    "DemosEnvConfig",
    "EmbodiedModelConfig",
    "EnvConfig",
    "EnvSection",
    "EvalEnvConfig",
    "FlowConfig",
    "KlControlConfig",
    "LoraConfig",
    "ModelConfig",
    "OpenModelConfig",
    "OptimConfig",
    "ParallelismConfig",
    "PhaseConfig",
    "PluginsConfig",
    "PolicyLossConfig",
    "RefConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "SftConfig",
    "TrainEnvConfig",
    "TrainerConfig",
    "ValidationSampling",
]
