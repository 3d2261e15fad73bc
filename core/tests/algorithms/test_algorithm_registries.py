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
