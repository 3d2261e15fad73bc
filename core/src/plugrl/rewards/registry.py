"""The registry of rewards. Importing it imports no torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from plugrl.errors import STOPS, ConfigError, NotRegistered, PluginError, UserError, one_line, one_of
from plugrl.registry import Registry, import_target
from plugrl.rewards.base import RewardFunction

F = TypeVar("F", bound=Callable[..., Any])


def check_reward(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` can be called."""
    if not callable(value):
        raise PluginError(f'Reward "{key}" must be a function, got {value!r}.')


REWARDS: Registry[RewardFunction] = Registry("reward", check=check_reward)

REWARDS.register_target(
    "gsm8k", "plugrl.rewards.gsm8k:reward", summary="the final number of a grade-school word problem"
)
REWARDS.register_target("exact_match", "plugrl.rewards.exact_match:reward", summary="the response equals the answer")


def register_reward(name: str, *, force: bool = False, summary: str = "") -> Callable[[F], F]:
    """Return a decorator for a reward function, see :data:`plugrl.rewards.base.RewardFunction`."""

    def decorate(value: F) -> F:
        REWARDS.register(name, value, force=force, summary=summary)
        return value

    return decorate


def get_reward(name: str, **options: Any) -> RewardFunction:
    """Return the reward registered under ``name``, or the importable function ``"module:function"``.

    ``options`` are bound to its keywords. Raises NotRegistered for an unknown name, UserError for a function that
    cannot be imported, ConfigError for an option the function does not take.
    """
    function = _import_function(name) if ":" in name else REWARDS.get(name)
    if not options:
        return function
    _check_options(name, function, options)
    return functools.partial(function, **options)


def _import_function(target: str) -> RewardFunction:
    try:
        function = import_target(target)
    except STOPS:
        raise
    except BaseException as error:  # The user's code.
        raise NotRegistered(f'Reward function "{target}" cannot be imported: {one_line(error)}') from error
    if not callable(function):
        raise UserError(f'Reward "{target}" is no function, it is {function!r}.')
    return function


def _check_options(name: str, function: RewardFunction, options: dict[str, Any]) -> None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # Some functions of C extensions do not tell.
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    # The first three are the response, the ground truth and the extra information: the caller's, not options.
    known = [parameter.name for parameter in parameters[3:] if parameter.kind is not parameter.VAR_POSITIONAL]
    for option in options:
        if option not in known:
            raise ConfigError(
                f'reward.reward_kwargs.{option}: reward "{name}" has no such option. It has: {one_of(known)}.'
            )
