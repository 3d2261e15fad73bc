"""From the configuration to environments of a slice."""

from __future__ import annotations

from plugrl.config.embodied_checks import chunk_of
from plugrl.config.schema import EnvConfig, RunConfig
from plugrl.envs import VecEnv, make_env
from plugrl.envs.disguise import disguised, own_disguises
from plugrl.errors import ConfigError


def build_env(config: RunConfig, split: EnvConfig, num_envs: int, key: str) -> VecEnv:
    """Build the environment of one slice; ``key`` is where ``split`` stands, ``env.train`` or ``env.eval``.

    Raises:
        ConfigError: its actions are not those of the policy.
        UserError: whatever the environment says of its settings.
    """
    given = split.init_params
    blank, swap = (bool(getattr(split, name, False)) for name in ("blank_images", "swap_instructions"))
    own = own_disguises(type(given), blank, swap)
    params = type(given).model_validate(
        given.model_dump()
        | {
            "num_envs": num_envs,
            "max_episode_steps": split.max_episode_steps,
            "auto_reset": split.auto_reset,
            "ignore_terminations": split.ignore_terminations,
        }
        | own
    )
    env = disguised(
        make_env(split.env_type, params),
        blank_images=blank and "blank_images" not in own,
        swap_instructions=swap and "swap_instructions" not in own,
    )
    wanted = getattr(config.model, "action_dim", env.action_dim)
    if env.action_dim != wanted:
        env.close()
        raise ConfigError(
            f"model.action_dim: the policy's actions have {wanted} numbers, but those of {key}.env_type="
            f"{split.env_type} have {env.action_dim}. Set model.action_dim={env.action_dim}, and with a pre-trained "
            "policy check that it was made for this environment."
        )
    return env


def chunks_of(config: RunConfig, split: EnvConfig) -> int | None:
    """Return how many chunks a pass has at most, None where it goes on until all scenes have ended."""
    steps = split.steps
    return None if steps is None else steps // chunk_of(config)
