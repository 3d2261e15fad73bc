"""Rules C1 to C19: each provoked, the nearest legal configuration taken, all problems of one reported together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vla_model as vla
import yaml
from pydantic import ValidationError

from plugrl.errors import ConfigError
from plugrl.models.precision import torch_dtype_from_precision
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import (
    build_mixed_precision,
    named_units,
    strategy_problems,
    validate_fsdp_wrapper_config,
)
from plugrl_engine_fsdp.config.problems import WrapConfigError

FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": None}


def named(**changes: Any) -> dict[str, Any]:
    """A legal section with one wrapper, one policy and one rule, changed."""
    section = {
        "strategy": "fsdp",
        "wrappers": {"norms": {"module_classes": ["RMSNorm"]}},
        "mixed_precision_policies": {"full": FP32},
        "mixed_precision_rules": {"norms": "full"},
    }
    return {**section, **changes}


def wrapper(**block: Any) -> dict[str, Any]:
    """The legal section with another wrapper."""
    return named(wrappers={"norms": block})


def policy(**block: Any) -> dict[str, Any]:
    """The legal section with other fields in its policy."""
    return named(mixed_precision_policies={"full": {**FP32, **block}})


# rule: (broken sections, what the message says, nearest legal sections)
RULES: dict[str, tuple[list[dict[str, Any]], str, list[dict[str, Any]]]] = {
    "C1": ([{"mixed_precision": "bf16"}, {"mixed_precision": []}], "mixed_precision must be a mapping",
           [{"mixed_precision": {}}, {"mixed_precision": None}]),
    "C2": ([{"mixed_precision": {"output_dtype": "bf16"}}, policy(param_dtyp="bf16")],
           "Unsupported FSDP1 MixedPrecision options: [", [{"mixed_precision": {"buffer_dtype": "bf16"}}]),
    "C3": ([{"mixed_precision": {"param_dtype": value}} for value in ("float32", "bfloat16", True, 8, 16.0, "", [])]
           + [policy(reduce_dtype="fp8")],
           "is no precision",
           [{"mixed_precision": {"param_dtype": value}} for value in ("bf16-mixed", 32, "16-mixed", "null", None)]),
    "C4": ([policy(**{name: value}) for name in ("cast_forward_inputs", "keep_low_precision_grads",
                                                  "cast_root_forward_inputs") for value in (1, "yes", None)],
           "must be a boolean", [policy(cast_forward_inputs=False, keep_low_precision_grads=True)]),
    "C5": ([named(wrappers=[]), named(mixed_precision_policies="full"), {"mixed_precision_rules": []}],
           "must be a mapping", [{"wrappers": None}, {"mixed_precision_rules": {}}]),
    "C7": ([named(strategy="fsdp2"), {"strategy": "ddp", "mixed_precision_policies": {"full": FP32}}],
           "Named wrappers require strategy='fsdp' (FSDP1)",
           [named(), named(strategy=None), named(strategy="fsdp2", fsdp2_unit_precision=True)]),
    "C8": ([named(disable=True)], "Named wrappers conflict with disable=true", [named(disable=False)]),
    "C9": ([named(amp_autocast={"enabled": True})], "mixed_precision_rules requires amp_autocast.enabled=false",
           [named(amp_autocast={"enabled": False}), named(amp_autocast={"enabled": True}, mixed_precision_rules={})]),
    "C10": ([named(mixed_precision_policies={"": FP32, "full": FP32}),
             named(mixed_precision_policies={3: FP32, "full": FP32})],
            "policy names must be non-empty strings", [named(mixed_precision_policies={"3": FP32, "full": FP32})]),
    "C11": ([named(mixed_precision_policies={"full": "fp32"}), named(mixed_precision_policies={"full": None})],
            "Policy 'full' must be a mapping", [policy()]),
    "C12": ([named(mixed_precision_policies={"full": {"param_dtype": "fp32"}})],
            "Policy 'full' is missing dtype fields: ['reduce_dtype', 'buffer_dtype']",
            [policy(param_dtype=None, reduce_dtype=None, buffer_dtype=None)]),
    "C13": ([named(mixed_precision_rules={"norm": "full"})], "Unknown wrapper 'norm' in mixed_precision_rules",
            [named(mixed_precision_rules={})]),
    "C14": ([named(mixed_precision_rules={"norms": value}) for value in ("ful", None, ["full"])],
            "Wrapper 'norms': unknown policy", [named(mixed_precision_policies={"full": FP32, "unused": FP32})]),
    "C15": ([named(wrappers={"norms": ["RMSNorm"]}), named(wrappers={"": {"module_names": ["a"]}}, **{
        "mixed_precision_rules": {}}), named(wrappers={7: {"module_names": ["a"]}}, mixed_precision_rules={})],
            "rapper", [named()]),
    "C16": ([wrapper(module_names=["a"], group=True)], "Wrapper 'norms': unsupported options ['group']",
            [wrapper(module_names=["a"], wrap_mode="subtree")]),
    "C17": ([wrapper(), wrapper(module_names=["a"], wrap_names=["b"]), wrapper(wrap_mode="combined")],
            "requires exactly one module selector", [wrapper(wrap_names=["b"])]),
    "C18": ([wrapper(module_names=value) for value in ("a", [], [""], ["a", 1], {"a": 1})],
            "selector must be a non-empty string list", [wrapper(module_names=["a", "b.*"])]),
    "C19": ([wrapper(module_names=["a"], wrap_mode=value) for value in ("Subtree", True, False, None, "group")],
            "wrap_mode must be individual, subtree, or combined, got",
            [wrapper(module_names=["a"], wrap_mode=mode) for mode in ("individual", "subtree", "combined")]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_what_breaks_it_and_takes_what_is_next_to_it(rule: str) -> None:
    broken, text, legal = RULES[rule]
    for section in broken:
        with pytest.raises(WrapConfigError) as caught:
            validate_fsdp_wrapper_config(section)
        assert rule in caught.value.rules, (section, str(caught.value))
        found = [problem for problem in caught.value.problems if problem.rule == rule]
        assert text in found[0].text and f"[{rule}]" in str(caught.value), str(caught.value)
        assert str(caught.value.problems[0].where) in str(caught.value)
    for section in legal:
        validate_fsdp_wrapper_config(section)
        FsdpConfig.model_validate(section)


def test_without_names_nothing_is_held_against_the_rest() -> None:
    """C6."""
    empty = {"wrappers": {}, "mixed_precision_policies": {}, "mixed_precision_rules": {}}
    for around in ({"strategy": "fsdp2"}, {"disable": True}, {"amp_autocast": {"enabled": True}}, {}):
        validate_fsdp_wrapper_config({**empty, **around})
    with pytest.raises(WrapConfigError):
        validate_fsdp_wrapper_config({"strategy": "fsdp2", "mixed_precision_policies": {"full": FP32}})


def test_all_problems_of_a_section_come_in_one_error() -> None:
    section = named(
        mixed_precision={"param_dtype": "fp8", "foo": 1},
        disable=True,
        mixed_precision_policies={"full": {"param_dtype": "fp32", "reduce_dtype": 7, "cast_forward_inputs": "no"}},
        mixed_precision_rules={"norms": "ful", "heads": "full"},
        wrappers={"norms": {"module_classes": "RMSNorm", "wrap_mode": "all"}},
    )
    with pytest.raises(ValidationError) as caught:
        FsdpConfig.model_validate(section)
    (item,) = caught.value.errors()
    error = item["ctx"]["error"]
    assert set(error.rules) == {"C2", "C3", "C8", "C12", "C4", "C14", "C13", "C18", "C19"}
    assert error.rule == "C2" and all(f"[{rule}]" in str(caught.value) for rule in error.rules)
    assert len(str(error).splitlines()) == 1 + len(error.problems)


def test_a_strategy_that_only_the_engine_knows_is_checked_there() -> None:
    config = FsdpConfig.model_validate(named(strategy=None))
    assert [problem.rule for problem in strategy_problems(config, "fsdp2")] == ["C7"]
    assert list(strategy_problems(config, "fsdp")) == []
    assert list(strategy_problems(FsdpConfig(), "fsdp2")) == []


def test_the_example_of_the_seed_is_read_as_written_and_printed_so_that_it_loads() -> None:
    config = FsdpConfig.model_validate(yaml.safe_load(vla.PI05))
    assert FsdpConfig.model_validate(config.model_dump(mode="json")) == config
    units = named_units(config)
    assert [(wrapper.name, wrapper.selector, wrapper.mode) for wrapper in units.wrappers] == [
        ("projections", "wrap_names", "individual"),
        ("norms", "module_classes", "individual"),
        ("vision_embedding", "module_names", "individual"),
        ("vision_mlps", "module_names", "subtree"),
    ]
    name, precision = units.policy_of("norms") or ("", None)
    assert name == "fp32_preserve_inputs" and precision is not None and not precision.cast_forward_inputs


def test_torchs_policy_casts_inputs_unless_told_not_to() -> None:
    mixed = build_mixed_precision({"param_dtype": "bf16", "reduce_dtype": 32})
    assert (mixed.param_dtype, mixed.reduce_dtype, mixed.buffer_dtype) == (torch.bfloat16, torch.float32, None)
    assert mixed.cast_forward_inputs and mixed.cast_root_forward_inputs and not mixed.keep_low_precision_grads
    assert not build_mixed_precision({"cast_forward_inputs": False}).cast_forward_inputs
    with pytest.raises(WrapConfigError, match="C1"):
        build_mixed_precision(None)


def test_autocast_and_fsdps_own_casting_exclude_each_other() -> None:
    on = {"amp_autocast": {"enabled": True}}
    for block in ({"param_dtype": "fp32", "reduce_dtype": "fp32"}, {"buffer_dtype": "bf16"}):
        with pytest.raises(WrapConfigError, match=r"amp_autocast.enabled conflicts with mixed_precision"):
            validate_fsdp_wrapper_config({**on, "mixed_precision": block})
    for block in ({}, dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")):
        validate_fsdp_wrapper_config({**on, "mixed_precision": block})
    with pytest.raises(ValidationError, match="use amp_autocast"):
        FsdpConfig.model_validate({"amp": {"enabled": True}})


def test_precisions_are_spelled_as_the_reference_says() -> None:
    spellings: dict[Any, torch.dtype | None] = {
        "bf16": torch.bfloat16, "bf16-mixed": torch.bfloat16, 16: torch.float16, "16": torch.float16,
        "fp16": torch.float16, "16-mixed": torch.float16, 32: torch.float32, "32": torch.float32,
        "fp32": torch.float32, "32-true": torch.float32, None: None, "null": None,
    }  # fmt: skip
    for spelling, dtype in spellings.items():
        assert torch_dtype_from_precision(spelling) is dtype
    for wrong in ("float32", "bfloat16", "float16", True, False, 16.0, "", "BF16", []):
        with pytest.raises(ConfigError, match="is no precision"):
            torch_dtype_from_precision(wrong)
    with pytest.raises(ConfigError, match="did you mean bf16"):
        torch_dtype_from_precision("torch.bfloat16")
