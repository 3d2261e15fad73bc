"""Wrap plans: rules M1 to M16, each provoked and beside a legal model; where units come from; ties; the seed's plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import block_policy as bp
import pytest
import torch
import vla_model as vla
import yaml
from torch import nn

from plugrl.errors import ConfigError
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision
from plugrl_engine_fsdp.wrapping import WrapConfigError, WrapPlan, resolve_wrap_plan
from plugrl_engine_fsdp.wrapping.policy import get_mixed_precision_wrap_policy

FULL = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": None}


class Pair(nn.Module):
    """Two layers and, if asked for, a buffer."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if buffer:
            self.register_buffer("shift", torch.zeros(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(hidden))


class Model(nn.Module):
    """Blocks in a list, a batch norm, a head."""

    _no_split_modules = ["Pair"]

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(Pair(buffer=index == 1) for index in range(2))
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.Sequential(Pair(), nn.BatchNorm1d(4))
        self.plain = nn.Sequential(nn.ReLU(), nn.Identity())
        self.head = nn.Linear(4, 8, bias=False)


def model(change: Callable[[Model], Any] | None = None) -> Model:
    """A model, changed."""
    made = Model()
    if change is not None:
        change(made)
    return made


def plan(change: Callable[[Model], Any] | None = None, *, base: Any = None, **section: Any) -> WrapPlan:
    """The plan of a changed model under a section that is checked as a run would."""
    return resolve_wrap_plan(model(change), FsdpConfig.model_validate(section), base_policy=base)


def wrappers(*, base: Any = None, change: Any = None, options: Any = None, **blocks: Any) -> Callable[[], WrapPlan]:
    """A plan with named wrappers; a list means paths, one unit each."""
    full = {name: {"module_names": block} if isinstance(block, list) else block for name, block in blocks.items()}
    return lambda: plan(change, base=base, wrappers=full, **(options or {}))


def group(*names: str, mode: str = "combined") -> dict[str, Any]:
    """A wrapper over paths that is one unit."""
    return {"module_names": list(names), "wrap_mode": mode}


def _shared(made: Model) -> None:
    made.blocks[1].a = made.head_twin = made.blocks[0].a


def _tied(made: Model) -> None:
    made.head.weight = made.embed.weight


def _half(made: Model) -> None:
    made.blocks[0].a.to(torch.bfloat16)


def _frozen(made: Model) -> None:
    made.blocks[0].a.requires_grad_(False)


def not_into_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """A policy that wraps blocks and does not look below."""
    return not isinstance(module, Pair) if recurse else isinstance(module, Pair)


def into_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """A policy that wraps blocks and looks everywhere."""
    return True if recurse else isinstance(module, Pair)


FLAT = {"use_orig_params": False}
# rule: (broken plans, what the message says, nearest legal plans)
RULES: dict[str, tuple[list[Callable[[], WrapPlan]], str, list[Callable[[], WrapPlan]]]] = {
    "M1": ([wrappers(w=["blocks.0", "blocks.7"]), wrappers(w=["nothing*"]), wrappers(w={"module_classes": ["Model"]}),
            wrappers(w={"wrap_names": ["head"]})],
           "matched no non-root modules", [wrappers(w=["blocks.0", "blocks.?.a"])]),
    "M2": ([wrappers(w=["head_twin"], change=_shared)],
           "Shared module has multiple wrapper paths: ['blocks.0.a', 'blocks.1.a', 'head_twin']",
           [wrappers(w=["blocks.0.b"], change=_shared)]),
    "M3": ([wrappers(w=group("embed", "head"))],
           "group resolves to the model root; select a non-root execution boundary",
           [wrappers(w=group("blocks.0.a", "blocks.0.b"))]),
    "M4": ([wrappers(w=group("blocks.1.a", "blocks.1.b"))],
           "grouping would include unselected states at 'blocks.1': blocks.1.shift",
           [wrappers(w=group("blocks.1", mode="subtree")), wrappers(w=group("blocks.0.a", "blocks.0.b"))]),
    "M5": ([wrappers(w=group("inner", mode="subtree"))], "BatchNorm exclusion would split the requested group",
           [wrappers(w=group("inner.0", mode="subtree")), wrappers(w=["inner"])]),
    "M6": ([wrappers(w=group("plain", mode="subtree"))], "group has no parameters", [wrappers(w=["plain"])]),
    "M7": ([wrappers(w=group("blocks.0", mode="subtree"), change=_half)], "uniform original parameter dtype",
           [wrappers(w=["blocks.0.a", "blocks.0"], change=_half)]),
    "M8": ([wrappers(w=group("blocks.0", mode="subtree"), change=_frozen, options=FLAT)],
           "mixed requires_grad, which needs use_orig_params=true",
           [wrappers(w=group("blocks.0", mode="subtree"), change=_frozen), wrappers(w=group("blocks.0", mode="subtree"),
                                                                                   options=FLAT)]),
    "M9": ([wrappers(w=["blocks"]), wrappers(w=group("blocks.0", "blocks.1"))],
           "Module 'blocks' has no forward execution boundary", [wrappers(w=["blocks.0", "blocks.1"])]),
    "M10": ([wrappers(w=["head"], v={"module_classes": ["Linear"]})],
            "Multiple wrapper definitions match module 'head': w, v", [wrappers(w=["head", "h*d"])]),
    "M11": ([wrappers(w=["norm"]), wrappers(w={"module_classes": ["torch.nn.modules.batchnorm.BatchNorm1d"]})],
            "subject to PyTorch's BatchNorm exclusion", [wrappers(w=["inner"])]),
    "M12": ([wrappers(w=group("blocks.*", mode="subtree")),
             wrappers(w=group("blocks.0", mode="subtree"), v=["blocks.0.a"])],
            "contains explicitly selected inner wrappers", [wrappers(w=group("blocks.?", mode="subtree")),
                                                            wrappers(w=["blocks.0"], v=["blocks.0.a"])]),
    "M13": ([wrappers(w=["blocks.0.a"], base=not_into_blocks),
             wrappers(w=["blocks.0.a"], options={"ignored_module_classes": ["Pair"]})],
            "Explicit wrappers ['blocks.0.a'] are below a non-recursing policy",
            [wrappers(w=["blocks.0.a"], base=into_blocks), wrappers(w=["blocks.0"], base=not_into_blocks)]),
    "M14": ([wrappers(w=["head"], change=_tied), wrappers(w=["embed"], v=["head"], change=_tied)],
            "Shared parameter crosses an explicit wrapper boundary: embed.weight in",
            [wrappers(w=["blocks.0"], change=_tied)]),
    "M15": ([wrappers(w=["blocks.0"], change=_half), lambda: plan(lambda made: made.head.to(torch.bfloat16))],
            "requires uniform original parameter dtype",
            [wrappers(w=["blocks.0.a"], change=_half), lambda: plan(lambda made: made.to(torch.bfloat16))]),
    "M16": ([wrappers(w=["blocks.1.a"], base=into_blocks, change=_frozen, options=FLAT),
             wrappers(w=["blocks.0"], change=lambda made: made.blocks[0].a.register_parameter(
                 "extra", nn.Parameter(torch.zeros(4), requires_grad=False)), options=FLAT)],
            "mixed requires_grad needs use_orig_params=true",
            [wrappers(w=["blocks.0.a"], base=into_blocks, change=_frozen, options=FLAT),
             lambda: plan(lambda made: made.embed.requires_grad_(False)),
             lambda: plan(lambda made: made.requires_grad_(False), use_orig_params=False)]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_what_breaks_it_and_takes_what_is_next_to_it(rule: str) -> None:
    broken, text, legal = RULES[rule]
    for attempt in broken:
        with pytest.raises(WrapConfigError) as caught:
            attempt()
        assert rule in caught.value.rules, str(caught.value)
        assert any(text in problem.text for problem in caught.value.problems if problem.rule == rule), str(caught.value)
        assert f"[{rule}]" in str(caught.value) and "fsdp_config." in str(caught.value)
    for attempt in legal:
        assert attempt().root.path == ""


def test_problems_of_all_wrappers_come_together() -> None:
    with pytest.raises(WrapConfigError) as caught:
        wrappers(u=["nothing"], v=["blocks"], w=group("plain", mode="subtree"), x=group("embed", "head"))()
    assert caught.value.rules == ("M1", "M9", "M6", "M3")
    with pytest.raises(WrapConfigError) as caught:
        wrappers(w=["blocks.1"], change=lambda made: (_half(made), made.head.to(torch.bfloat16)))()
    assert caught.value.rules == ("M15", "M15")


def test_the_plan_of_the_seed_is_what_it_says() -> None:
    """The example as written: fp32 for sensitive modules, the rest in bf16, one unit for each MLP of the encoder."""
    section = yaml.safe_load(vla.PI05)
    policy = vla.FlowPolicy()
    before = {name: dict(vars(module)) for name, module in policy.named_modules()}
    made = resolve_wrap_plan(policy, section)
    assert {unit.path: (unit.policy, unit.mode) for unit in made.inner} == {
        "img": ("fp32_preserve_inputs", "individual"),
        "img.stem": ("fp32_preserve_inputs", "individual"),
        **{f"img.encoder.layers.{layer}": (None, "automatic") for layer in (0, 1)},
        **{f"img.encoder.layers.{layer}.mlp": ("fp32", "subtree") for layer in (0, 1)},
        **{f"expert.layers.{layer}": (None, "automatic") for layer in (0, 1)},
        **{f"expert.layers.{layer}.input_norm": ("fp32_preserve_inputs", "individual") for layer in (0, 1)},
        "expert.norm": ("fp32_preserve_inputs", "individual"),
        **{name: ("fp32", "individual") for name in vla.TAGGED},
    }
    assert made.root.precision == UnitPrecision(
        param_dtype="bf16", reduce_dtype="fp32", buffer_dtype="fp32", cast_forward_inputs=False,
        cast_root_forward_inputs=False,
    )  # fmt: skip
    assert made["action_in_proj"].reason == "wrapper projections: action_in_proj"
    assert sum(unit.parameters for unit in made.units) == sum(p.numel() for p in policy.parameters())
    # Planning is pure, and whether the section was checked or is as written makes no difference.
    assert made == resolve_wrap_plan(policy, FsdpConfig.model_validate(section))
    assert {name: dict(vars(module)) for name, module in policy.named_modules()} == before
    assert vla.FlowPolicy._no_split_modules == ["EncoderLayer", "ExpertLayer"]


def test_the_plan_warns_of_outputs_in_another_dtype() -> None:
    warnings = resolve_wrap_plan(vla.FlowPolicy(), yaml.safe_load(vla.PI05)).warnings
    (mlps,) = (text for text in warnings if "'vision_mlps'" in text)
    assert "returns fp32 to a unit that computes in bf16" in mlps and "img.encoder.layers.0.mlp" in mlps
    (norms,) = (text for text in warnings if "'norms'" in text)
    assert "cast_forward_inputs=false" in norms
    assert resolve_wrap_plan(vla.FlowPolicy(), {"mixed_precision": {"param_dtype": "bf16"}}).warnings == ()


def test_users_rules_go_before_the_models_and_say_what_they_replace() -> None:
    declared = plan()
    assert declared.paths == ("blocks.0", "blocks.1", "inner.0")
    assert {unit.reason for unit in declared.inner} == {"declared by Model: Pair"}
    custom = plan(wrap_policy={"transformer_layer_cls_to_wrap": ["Linear"], "module_classes_to_wrap": None})
    assert "head" in custom.paths and "blocks.0" not in custom.paths
    assert custom.notices == ("put aside by the user's own rules: blocks.0, blocks.1, inner.0",)
    # Keys that are present but empty are not set.
    empty = {"transformer_layer_cls_to_wrap": None, "module_classes_to_wrap": [], "no_split_names": None}
    assert plan(wrap_policy=empty) == declared
    qualified = plan(wrap_policy={"module_classes_to_wrap": ["torch.nn.modules.linear.Linear"]})
    assert qualified.paths == custom.paths
    assert plan(disable=True).paths == ()


def test_tags_declared_parts_and_usual_roles_are_units() -> None:
    def tagged(made: Model) -> None:
        made.head._fsdp_wrap_name = "out"
        made._no_split_names = ["out", "absent"]
        made.value_head = nn.Linear(4, 1)

    assert {path: plan(tagged)[path].reason for path in ("head", "value_head")} == {
        "head": "declared by Model: tag out", "value_head": "usual for a value head"
    }  # fmt: skip
    assert plan(tagged, wrap_policy={"no_split_names": ["out", "nobody"]}).paths == ("head",)

    def composed(made: Model) -> None:
        made._no_split_modules = None
        made.language_model = Model()

    assert plan(composed)["language_model.blocks.1"].reason == "declared by Model: Pair"


def test_adapters_are_units_only_where_fsdp1_cannot_keep_them_with_their_base() -> None:
    def adapted(made: Model) -> None:
        made.requires_grad_(False)
        for block in made.blocks:
            block.lora_a = nn.Linear(4, 2, bias=False)

    assert plan(adapted).paths == ("blocks.0", "blocks.1", "inner.0")
    flat = plan(adapted, use_orig_params=False)
    assert flat["blocks.0.lora_a"].reason == "trainable leaf of a frozen model"

    def half_base(made: Model) -> None:
        made.to(torch.bfloat16)
        adapted(made)

    assert "blocks.1.lora_a" in plan(half_base).paths
    fsdp2 = resolve_wrap_plan(model(half_base), {}, strategy="fsdp2")
    assert fsdp2.paths == ("blocks.0", "blocks.1", "inner.0")


def test_ties_across_automatic_units_are_merged_and_others_named() -> None:
    def tied(made: Model) -> None:
        made.value_head = nn.Linear(4, 8, bias=False)
        made.value_head.weight = made.embed.weight

    merged = plan(tied)
    assert "value_head" not in merged.paths
    (notice,) = merged.notices
    assert notice == "value_head is no unit of its own: it shares a parameter (embed.weight, value_head.weight)"
    with pytest.raises(ConfigError, match=r"embed.weight in the root, head.weight in head"):
        plan(_tied, wrap_policy={"module_classes_to_wrap": ["Linear"]})
    sized = plan(_tied, wrap_policy={"min_num_params": 10})
    assert "blocks.0.a" in sized.paths and not {"embed", "head"} & set(sized.paths)
    # A module that stands twice in the model is one unit, and no tie.
    twice = plan(lambda made: made.blocks.append(made.blocks[0]))
    assert twice.paths == ("blocks.0", "blocks.1", "inner.0")


def test_without_anything_that_says_what_to_wrap_there_is_no_sharding() -> None:
    def silent(made: Model) -> None:
        made._no_split_modules = None
        made.value_head = nn.Linear(4, 1)

    with pytest.raises(ConfigError, match=r"Model declares no units to shard.*min_num_params.*It has: BatchNorm1d"):
        plan(silent)
    with pytest.raises(ConfigError, match=r"Model declares Block, of which the model has none"):
        plan(lambda made: setattr(made, "_no_split_modules", ["Block"]))
    assert plan(silent, disable=True).paths == ()
    assert plan(silent, wrappers={"w": {"module_names": ["head"]}}).paths == ("head", "value_head")
    assert resolve_wrap_plan(model(silent), {}, shards=False).paths == ("value_head",)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"transformer_layer_cls_to_wrap": ["Blok"]}, r"'Blok'; did you mean 'Block'.*Embedding"),
        ({"transformer_layer_cls_to_wrap": ["ModuleList"]}, "has no forward"),
        ({"transformer_layer_cls_to_wrap": ["Block"], "min_num_params": 5}, "exclude each other"),
    ],
)
def test_wrong_rules_are_one_message(section: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve_wrap_plan(bp.BlockPolicy(), FsdpConfig.model_validate({"wrap_policy": section}))


def test_ignored_modules_belong_to_no_unit() -> None:
    ignored = plan(ignored_module_classes="BatchNorm1d", ignored_modules=r"inner\.0")
    assert ignored.ignored == ("inner.0", "inner.1", "norm") and "inner.0" not in ignored.paths
    assert sum(unit.parameters for unit in ignored.units) < sum(p.numel() for p in model().parameters())
    for section in ({"ignored_module_classes": "BatchNorm2d"}, {"ignored_modules": "nor"}):
        with pytest.raises(ConfigError, match="BatchNorm1d|matches no module"):
            plan(**section)


def test_batch_norms_stay_in_their_own_precision_under_fsdp1() -> None:
    low = {"mixed_precision": {"param_dtype": "bf16"}}
    made = plan(**low)
    assert made["norm"].precision == UnitPrecision() and "FSDP1" in made["norm"].reason
    assert "norm" not in resolve_wrap_plan(model(), FsdpConfig.model_validate(low), strategy="fsdp2").paths


def test_named_wrappers_are_added_to_a_wrap_policy_of_torch() -> None:
    made = model()
    assert get_mixed_precision_wrap_policy(made, {}, into_blocks) is into_blocks
    assert get_mixed_precision_wrap_policy(made, FsdpConfig(), None) is None
    section = {
        "wrappers": {"w": {"module_names": ["head"]}, "v": {"module_names": ["embed"]}},
        "mixed_precision_policies": {"full": FULL},
        "mixed_precision_rules": {"w": "full"},
    }

    def chosen(base: Any) -> dict[str, Any]:
        policy = get_mixed_precision_wrap_policy(made, section, base, UnitPrecision(param_dtype="bf16"))
        found = policy._run_policy(made, set(), {"mixed_precision": "global"})
        names = {module: path for path, module in made.named_modules()}
        return {names[module]: options["mixed_precision"] for module, options in found.items()}

    alone = chosen(None)
    assert alone["head"].param_dtype == torch.float32 and alone["embed"] == "global"
    assert alone["norm"] is None and "blocks.0" not in alone
    assert chosen(into_blocks)["blocks.0"] == "global"


def test_named_policies_of_units_are_never_inherited() -> None:
    made = plan(
        mixed_precision={"param_dtype": "bf16"},
        wrappers={"w": {"module_names": ["blocks.0"]}, "v": {"module_names": ["blocks.0.a"]}},
        mixed_precision_policies={"full": FULL},
        mixed_precision_rules={"w": "full"},
    )
    assert made["blocks.0"].policy == "full" and made["blocks.0.a"].policy is None
    assert made["blocks.0.a"].precision.param_dtype == "bf16"
    assert made.parent(made["blocks.0.a"]).path == "blocks.0"
