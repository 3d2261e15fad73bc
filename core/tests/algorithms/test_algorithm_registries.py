"""The registries of estimators and losses (rules AL-1, PF-3), and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plugrl.algorithms import advantages, losses, register_advantage, register_policy_loss
from plugrl.errors import DuplicateRegistration


@pytest.mark.parametrize(("registry", "decorator"), [(advantages, register_advantage), (losses, register_policy_loss)])
def test_same_function_twice_is_fine_another_is_an_error(registry, decorator):
    def mine(*tensors, **keywords):
        return tensors

    def other(*tensors, **keywords):
        return keywords

    with registry.temporary():
        assert decorator("mine")(mine) is mine
        assert decorator("mine")(mine) is mine
        assert registry.get("mine") is mine
        with pytest.raises(DuplicateRegistration, match="mine"):
            decorator("mine")(other)
        assert decorator("mine", force=True)(other) is other
        assert registry.get("mine") is other
    assert "mine" not in registry


def test_a_plugin_may_declare_only_the_keywords_it_uses():
    pytest.importorskip("torch")
    from plugrl.algorithms import get_advantage

    def plain(token_rewards, response_mask, *, gamma=1.0):
        return token_rewards, gamma

    with advantages.temporary():
        register_advantage("plain")(plain)
        estimate = get_advantage("plain")
        assert estimate(1, 2, group_ids=[1], values=None, baselines=None, gamma=0.5, lam=1.0) == (1, 0.5)
        with pytest.raises(ValueError, match='no option "gama". Did you mean "gamma"'):
            estimate(1, 2, gama=0.5)


def test_importing_the_light_modules_imports_nothing_heavy():
    program = (
        "import sys, plugrl.algorithms, plugrl.data, plugrl.rewards, plugrl.metric, plugrl.data.registry\n"
        "from plugrl.data import load_records, PromptSampler, plan_run\n"
        "from plugrl.rewards.manager import RewardManager\n"
        "heavy = {'torch', 'numpy', 'ray', 'transformers', 'pyarrow'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_loss_that_does_not_take_the_global_counts_is_refused():
    from plugrl.errors import PluginError

    def careless(log_probs, old_log_probs, advantages, mask, *, aggregation="token-mean"):
        return log_probs

    with losses.temporary(), pytest.raises(PluginError, match="does not take .*dp_size.*token_loss"):
        register_policy_loss("careless")(careless)


def test_a_plugin_makes_a_loss_of_a_formula():
    torch = pytest.importorskip("torch")
    from plugrl.algorithms import get_policy_loss, token_loss

    def squared(log_probs, old_log_probs, advantages, mask, *, scale=1.0):
        return scale * (log_probs - old_log_probs) ** 2, {}

    with losses.temporary():
        register_policy_loss("squared")(token_loss()(squared))
        loss, _ = get_policy_loss("squared")(
            torch.tensor([[1.0, float("nan")]]),
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.tensor([[1, 0]]),
            clip_low=0.2,
            dp_size=2,
            batch_num_tokens=4,
            scale=3.0,
        )
    assert loss.item() == 1.5


def test_options_are_checked_before_a_run():
    pytest.importorskip("torch")
    from plugrl.algorithms import check_options

    check_options("loss", "dro", {"dro_beta": 0.1})
    check_options("advantage", "gpg", {"f_norm": 2.0})
    with pytest.raises(ValueError, match='"vanilla" has no option "dro_beta"'):
        check_options("loss", "vanilla", {"dro_beta": 0.1})
    with pytest.raises(ValueError, match='No advantage "gpgg". Did you mean "gpg"'):
        check_options("advantage", "gpgg", {})


def test_the_signature_of_a_loss_shows_its_options():
    pytest.importorskip("torch")
    import inspect

    from plugrl.algorithms.policy_losses import policy_loss, vanilla

    assert set(inspect.signature(policy_loss).parameters) == set(inspect.signature(vanilla).parameters)
