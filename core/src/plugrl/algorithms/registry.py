"""The registries of advantage estimators and policy losses; light: no torch until something is looked up.

Names are case-sensitive. An estimator is a function

    ``fn(token_rewards [B, T], response_mask [B, T], *, <keywords it uses>) -> (advantages [B, T], returns [B, T])``

and a policy loss

    ``fn(log_probs, old_log_probs, advantages, mask, *, <keywords it uses>) -> (loss 0-d, metrics)``.

Callers give the common keywords to every one of them; those that a function does not declare are left out, while an
unknown option is an error. A policy loss must take all keywords of the aggregation: without the global counts it would
be scaled wrongly on several ranks. ``plugrl.algorithms.token_loss`` makes such a function of a formula for one token.
Plugins and scripts add their own through :func:`register_advantage` and :func:`register_policy_loss`.

What works on steps in an environment instead of tokens has a key that begins with ``embodied/`` in the same registries,
and ignores case: :mod:`plugrl.algorithms.embodied.registry`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from plugrl.errors import PluginError, UserError, nearest, one_of
from plugrl.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    Advantage = Callable[..., tuple[Tensor, Tensor]]
    PolicyLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]

F = TypeVar("F", bound=Callable[..., Any])

ADVANTAGE_KEYWORDS = frozenset({"group_ids", "values", "baselines", "gamma", "lam", "norm_adv_by_std_in_grpo"})
"""Keywords that the runners give to every estimator."""

LOSS_KEYWORDS = frozenset({"clip_low", "clip_high", "clip_dual"})
"""Keywords that the workers give to every policy loss, besides those of the aggregation."""

AGGREGATION_KEYWORDS = frozenset(
    {"aggregation", "rollout_is_weights", "dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor"}
)
"""Keywords that say how a policy loss is weighted and aggregated; every policy loss must take them."""

GROUP_LOCAL = frozenset({"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo"})
"""Estimators whose advantages of a row depend on the responses to the same prompt alone."""


def _check_callable(key: Any, value: object) -> None:
    if not callable(value):
        raise PluginError(f'"{key}" is registered as an algorithm but is {type(value).__name__}, not a function.')


EMBODIED = "embodied/"
"""What the keys of estimators and losses begin with that work on steps in an environment."""


def _check_loss(key: Any, value: object) -> None:
    _check_callable(key, value)
    declared = declared_keywords(value)  # type: ignore[arg-type]
    if str(key).startswith(EMBODIED):
        if declared is not None and "mean" not in declared:
            raise PluginError(
                f'Policy loss "{key}" does not take mean. Declare it and average with it, '
                "(values, mask) -> 0-d: the loss would depend on the micro-batches otherwise."
            )
        return
    missing = AGGREGATION_KEYWORDS - declared if declared is not None else ()
    if missing:
        raise PluginError(
            f'Policy loss "{key}" does not take {one_of(missing)}. Declare them or **keywords and hand them to '
            "plugrl.algorithms.aggregate, or make it with plugrl.algorithms.token_loss."
        )


def _exact(key: Any) -> Any:
    """Keep the case of a name, as verl does; that of embodied names does not matter."""
    if isinstance(key, str) and key.lower().startswith(EMBODIED):
        return key.strip().lower()
    return key


advantages: Registry[Advantage] = Registry("advantage", normalize=_exact, check=_check_callable)
losses: Registry[PolicyLoss] = Registry("loss", normalize=_exact, check=_check_loss)

_ADVANTAGES = {
    "gae": ("return_advantages:gae", "generalised advantage estimation; needs values"),
    "grpo": ("group_advantages:grpo", "outcome minus the group's mean, over its standard deviation"),
    "grpo_vectorized": ("group_advantages:grpo", "the same function as grpo, under verl's second name"),
    "rloo": ("group_advantages:rloo", "outcome minus the mean of the others; a group of one keeps its outcome"),
    "rloo_vectorized": ("group_advantages:rloo_vectorized", "rloo; a group of one gets 0"),
    "reinforce_plus_plus": ("return_advantages:reinforce_plus_plus", "whitened return-to-go"),
    "reinforce_plus_plus_baseline": ("group_advantages:reinforce_plus_plus_baseline", "whitened outcome minus mean"),
    "remax": ("return_advantages:remax", "return-to-go minus the greedy reward; needs baselines"),
    "opo": ("group_advantages:opo", "outcome minus the group's length-weighted mean"),
    "grpo_passk": ("group_advantages:grpo_passk", "only the best of a group counts, by its lead over the second"),
    "gpg": ("group_advantages:gpg", "outcome minus mean, scaled by the share of non-zero outcomes"),
    "gdpo": ("group_advantages:gdpo", "grpo for each reward component, weighted, whitened"),
    "optimal_token_baseline": ("token_baselines:optimal_token_baseline", "return minus a baseline for each token"),
    "tir_optimal_token_baseline": ("token_baselines:tir_optimal_token_baseline", "the same over valid tokens only"),
}

_LOSSES = {
    "vanilla": ("policy_losses:vanilla", "PPO with a lower and an upper clip and an optional dual clip"),
    "gspo": ("policy_losses:gspo", "one clipped ratio for each sequence"),
    "sapo": ("policy_losses:sapo", "a sigmoid gate in place of the clip"),
    "geo_mean": ("policy_losses:geo_mean", "geometric mean of clipped ratios for each sequence"),
    "gpg": ("gradient_losses:gpg", "plain policy gradient"),
    "cispo": ("gradient_losses:cispo", "policy gradient weighted by the clipped ratio"),
    "dppo_tv": ("gradient_losses:dppo_tv", "tokens outside a total-variation bound are dropped"),
    "dppo_kl": ("gradient_losses:dppo_kl", "tokens outside a binary KL bound are dropped"),
    "dro": ("gradient_losses:dro", "policy gradient with a quadratic penalty on the log-ratio"),
    "clip_cov": ("covariance_losses:clip_cov", "a random few tokens of high covariance are dropped"),
    "kl_cov": ("covariance_losses:kl_cov", "the tokens of highest covariance get a KL term"),
}

_EMBODIED_ADVANTAGES = {
    "gae": ("return_advantages:gae", "generalised advantage estimation over steps; needs values"),
    "grpo": ("group_advantages:grpo", "score of the episode, normalised over its group"),
    "grpo_video": ("group_advantages:grpo_video", "rewards of frames, normalised over the group"),
    "grpo_dynamic": ("group_advantages:grpo_dynamic", "grpo for trajectories of different numbers of turns"),
    "reinpp": ("return_advantages:reinpp", "score to go, whitened, on demand with the group's mean as baseline"),
    "opd": ("return_advantages:opd", "log-probability of a teacher minus the policy's"),
    "raw": ("return_advantages:raw", "score of the episode as it is, on demand normalised"),
}

_EMBODIED_LOSSES = {
    "actor": ("losses:actor", "PPO with an optional dual clip"),
    "actor_critic": ("losses:actor_critic", "actor plus a clipped Huber loss of the values"),
    "decoupled_actor_critic": ("decoupled:decoupled_actor_critic", "PPO against a proximal policy, with values"),
    "opd": ("losses:opd", "actor with the teacher's advantages"),
}

_ADVANTAGES |= {f"{EMBODIED}{name}": (f"embodied.{at}", about) for name, (at, about) in _EMBODIED_ADVANTAGES.items()}
_LOSSES |= {f"{EMBODIED}{name}": (f"embodied.{at}", about) for name, (at, about) in _EMBODIED_LOSSES.items()}

for _name, (_target, _summary) in _ADVANTAGES.items():
    advantages.register_target(_name, f"plugrl.algorithms.{_target}", summary=_summary)
for _name, (_target, _summary) in _LOSSES.items():
    losses.register_target(_name, f"plugrl.algorithms.{_target}", summary=_summary)


def register_advantage(name: str, *, force: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers an advantage estimator and gives the function back unchanged."""

    def decorate(function: F) -> F:
        advantages.register(name, function, force=force)
        return function

    return decorate


def register_policy_loss(name: str, *, force: bool = False) -> Callable[[F], F]:
    """Return a decorator that registers a policy loss and gives the function back unchanged."""

    def decorate(function: F) -> F:
        losses.register(name, function, force=force)
        return function

    return decorate


def get_advantage(name: str) -> Advantage:
    """Return the estimator ``name``.

    It is called as ``(token_rewards, response_mask, *, group_ids=None, values=None, baselines=None, gamma=1.0,
    lam=1.0, **options)`` and returns ``(advantages, returns)``, both [B, T] and 0 at masked positions.

    Raises:
        NotRegistered: (a ValueError) no such name; known ones are listed.
    """
    return tolerant(f'advantage estimator "{name}"', advantages.get(name), ADVANTAGE_KEYWORDS)


def get_policy_loss(mode: str) -> PolicyLoss:
    """Return the policy loss ``mode``.

    It is called as :func:`plugrl.algorithms.policy_loss` is, with the mode's own options besides, and returns
    ``(loss, metrics)``.

    Raises:
        NotRegistered: (a ValueError) no such mode; known ones are listed.
    """
    return tolerant(f'policy loss "{mode}"', losses.get(mode), LOSS_KEYWORDS)


def declared_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of the keywords a function declares besides its tensors, or None if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
    )


def check_options(kind: Literal["advantage", "loss"], name: str, options: Mapping[str, Any]) -> None:
    """Check before a run that the estimator or loss ``name`` exists and takes these options of the configuration.

    Raises:
        NotRegistered: (a ValueError) no such name.
        UserError: an option it does not have.
    """
    registry: Registry[Any] = advantages if kind == "advantage" else losses
    declared = declared_keywords(registry.get(name))
    if declared is not None:
        what = f'advantage estimator "{name}"' if kind == "advantage" else f'policy loss "{name}"'
        select_keywords(what, declared, frozenset(), dict(options))


def select_keywords(
    what: str, declared: frozenset[str], common: frozenset[str], given: dict[str, Any]
) -> dict[str, Any]:
    """Leave out the common keywords that are not declared; refuse unknown ones.

    Raises:
        UserError: an option that ``what`` does not have.
    """
    for name in given.keys() - declared - common:
        like = nearest(name, declared)
        hint = f' Did you mean "{like}"?' if like else ""
        raise UserError(f'The {what} has no option "{name}".{hint} It takes: {one_of(declared)}.')
    return {name: value for name, value in given.items() if name in declared}


def tolerant(what: str, function: F, common: frozenset[str]) -> F:
    """Wrap a function that declares its keywords, so that it may be given all of the common ones.

    Those that it does not declare are left out; an unknown one that is not common is an error.
    """
    declared = declared_keywords(function)
    if declared is None:
        return function

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(*args, **select_keywords(what, declared, common, keywords))

    return call  # type: ignore[return-value]
