"""What each vendor's platform answers and which engines it gets: with stand-in SDKs, a process for each device type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

ASK = """
import importlib, json, os, sys
from plugrl.engines import EngineRegistry
from plugrl.platforms import get_platform, reset, set_platform
from plugrl.plugins import load_plugins
from plugrl.registry import registry_of
import torch

load_plugins()

def answers(name):
    platform = registry_of("platform").get(name)()
    before = platform.communication_backend_name()
    os.environ["USE_FLAGCX"] = " TRUE "
    with_flagcx = platform.communication_backend_name()
    del os.environ["USE_FLAGCX"]
    found = dict(
        device=platform.device_name, vendor=platform.vendor_name, backend=[before, with_flagcx],
        mask=platform.visible_devices_envvar(), resource=platform.ray_resource_options(1),
        noset=platform.ray_noset_envvars(), ipc=platform.is_ipc_supported(), rollout=platform.rollout_env_vars(),
        generic=platform.generic_engine_vendor(), forwarded=platform.forward_env_vars(),
        collective=platform.get_collective_module() is None, sdk=platform.sdk_version(),
    )
    return found

def engines(name):
    set_platform(registry_of("platform").get(name)())
    paths = {}
    for backend in ("fsdp2", "fsdp", "ddp", "megatron"):
        found = EngineRegistry.explain("language_model", backend)
        paths[backend] = found.entry.target if found.entry else found.steps[0].skipped
    cls = EngineRegistry.get_engine_cls("language_model", "fsdp2")
    base = cls.__mro__[1]
    paths["overrides"] = sorted(name for name in vars(cls) if not name.startswith("_"))
    paths["sections"] = [section.key for section in EngineRegistry.sections("language_model", "fsdp2")]
    paths["base"] = base.__module__ + ":" + base.__qualname__
    return paths

def used(name):
    platform = registry_of("platform").get(name)()
    platform.set_device(1)
    platform.manual_seed_all(7)
    state = platform.rng_state()
    platform.manual_seed(9)
    platform.set_rng_state(state)
    platform.synchronize(); platform.synchronize(1); platform.empty_cache(); platform.set_allocator_settings("a:b")
    try:
        platform.set_device(2)
        refused = ""
    except ValueError as error:
        refused = str(error)
    os.environ[platform.visible_devices_envvar()] = "4,6"
    return dict(available=platform.is_available(), smi=platform.is_platform_available(True), state=state.tolist(),
                count=platform.device_count(), current=platform.current_device(), refused=refused,
                uuid=platform.get_device_uuid(1), dtype=platform.preferred_dtype(),
                capability=list(platform.get_device_capability()), module=platform.device_module.__name__)

wanted = json.loads(sys.argv[1])
result = {}
for name in wanted["names"]:
    if "hip" in wanted:
        torch.cuda.is_available = lambda: True
        platform, seen = registry_of("platform").get(name)(), []
        torch.version.cuda = "12.8"
        for torch.version.hip in (None, wanted["hip"]):
            seen.append(platform.is_available())
    torch.version.xpu = "20250301"
    result[name] = dict(answers=answers(name), engines=engines(name))
    if "hip" in wanted:
        result[name]["seen"] = seen
    if wanted.get("use"):
        result[name]["used"] = used(name)
print(json.dumps(result))
"""

CUMEM = {"NCCL_CUMEM_ENABLE": "0"}
FLAGCX = ["USE_FLAGCX", "FLAGCX_PATH"]
GPU = {"num_gpus": 1}


def noset(*variables: str) -> list[str]:
    """Ray's variables that keep it from setting these masks."""
    return [f"RAY_EXPERIMENTAL_NOSET_{variable}" for variable in variables]


# name: device, vendor, backend, with USE_FLAGCX, mask, resource, NOSET, IPC, rollout, generic vendor, forwarded
FACTS: dict[str, tuple[Any, ...]] = {
    "cuda": (
        *("cuda", "nvidia", "nccl", "flagcx", "CUDA_VISIBLE_DEVICES", GPU, noset("CUDA_VISIBLE_DEVICES"), True),
        *(CUMEM, None, FLAGCX),
    ),
    "rocm": (
        *("cuda", "amd", "nccl", "flagcx", "CUDA_VISIBLE_DEVICES", GPU),
        *(noset("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), True),
        *({**CUMEM, "SGLANG_USE_AITER": "1"}, "nvidia", FLAGCX),
    ),
    "metax": (
        *("cuda", "metax", "nccl", "nccl", "CUDA_VISIBLE_DEVICES", GPU, noset("CUDA_VISIBLE_DEVICES"), True),
        *({}, "nvidia", []),
    ),
    "flagos": (
        *("cuda", "flagos", "nccl", "flagcx", "CUDA_VISIBLE_DEVICES", GPU, noset("CUDA_VISIBLE_DEVICES"), True, CUMEM),
        *("nvidia", [*FLAGCX, "USE_FLAGGEMS", "TRAINING_FL_FLAGOS_WHITELIST", "TRAINING_FL_FLAGOS_BLACKLIST"]),
    ),
    "npu": (
        *("npu", "huawei", "hccl", "flagcx", "ASCEND_RT_VISIBLE_DEVICES", {"resources": {"NPU": 1}}),
        *(noset("ASCEND_RT_VISIBLE_DEVICES"), False),
        *({**CUMEM, "VLLM_ASCEND_AUTO_DETECT_QUANTIZATION": "0", "TASK_QUEUE_ENABLE": "2"}, None, FLAGCX),
    ),
    "xpu": ("xpu", "intel", "xccl", "xccl", "ZE_AFFINITY_MASK", GPU, noset("ZE_AFFINITY_MASK"), False, {}, None, []),
    "mlu": (
        *("mlu", "cambricon", "cncl", "cncl", "MLU_VISIBLE_DEVICES", GPU, noset("MLU_VISIBLE_DEVICES"), True),
        *({}, None, []),
    ),
    "enflame": (
        *("gcu", "enflame", "eccl", "flagcx", "TOPS_VISIBLE_DEVICES", GPU, noset("TOPS_VISIBLE_DEVICES"), True),
        {
            **{**CUMEM, "TORCH_ECCL_AVOID_RECORD_STREAMS": "1", "TORCHGCU_INDUCTOR_ENABLE": "0"},
            **{"TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        },
        *(None, FLAGCX),
    ),
}
KEYS = ("device", "vendor", "mask", "resource", "noset", "ipc", "rollout", "generic", "forwarded")
STAND_INS = {"npu": "sdk_ascend", "mlu": "sdk_cambricon", "enflame": "sdk_enflame", "xpu": "sdk_intel"}


@pytest.fixture(scope="module")
def asked(answer: Callable[..., Any], vendors: list[Any]) -> dict[str, Any]:
    """Everything that was asked of each platform. torch can have one foreign device type: each gets its process."""
    names = [vendor.name for vendor in vendors]
    shared = [name for name in names if name not in STAND_INS]
    found = answer(ASK, argument={"names": shared, "hip": "7.1"}, torch=True)
    for name, sdk in STAND_INS.items():
        wanted = {"names": [name], "use": True}
        variables = {"VLLM_ASCEND_TASK_QUEUE_ENABLE": "2", "ASCEND_HOME_PATH": "/nowhere"}
        found |= answer(ASK, sdk, argument=wanted, torch=True, **variables)
    return found


def test_the_answers_are_the_vendors_facts(vendor: Any, asked: dict[str, Any]) -> None:
    device, name, backend, with_flagcx, *rest = FACTS[vendor.name]
    answers = asked[vendor.name]["answers"]
    assert answers["backend"] == [backend, with_flagcx] and answers["collective"]
    assert {key: answers[key] for key in KEYS} == dict(zip(KEYS, (device, name, *rest), strict=True))


def test_the_engines_are_the_vendors_own(vendor: Any, asked: dict[str, Any]) -> None:
    engines, module = asked[vendor.name]["engines"], f"{vendor.package}.engines.fsdp"
    prefix = vendor.name.title()
    assert engines["fsdp2"] == f"{module}:{prefix}Fsdp2Engine" and engines["ddp"] == f"{module}:{prefix}DdpEngine"
    assert engines["fsdp"] == f"{module}:{prefix}Fsdp1Engine"
    assert engines["base"] == "plugrl_engine_fsdp.backends:Fsdp2Engine" and engines["overrides"] == ["initialize"]
    assert engines["sections"] == ["fsdp_config"]
    assert engines["megatron"] == f"{vendor.package}.engines.megatron:{prefix}MegatronEngine"


def test_builds_of_torch_tell_amd_from_nvidia(asked: dict[str, Any]) -> None:
    """Both answer as torch.cuda; usable without and with a build for ROCm."""
    assert asked["cuda"]["seen"] == [True, False] and asked["rocm"]["seen"] == [False, True]
    assert asked["metax"]["seen"] == [True, True]
    sdks = {name: asked[name]["answers"]["sdk"] for name in asked}
    known = {"cuda": "CUDA 12.8", "rocm": "ROCm 7.1", "xpu": "XPU 20250301"}
    assert sdks == {name: known.get(name, "") for name in asked}


@pytest.mark.parametrize("name", STAND_INS)
def test_the_platform_works_on_a_stand_in(name: str, asked: dict[str, Any]) -> None:
    used, device = asked[name]["used"], FACTS[name][0]
    assert used["available"] and used["smi"] and used["count"] == 2 and used["current"] == 1
    assert used["state"] == [7] and used["refused"] == f"No {device} device 2: torch sees 2."
    assert used["uuid"] == ("NPU6" if name == "npu" else "GPU6") and used["dtype"] == "bf16"
    assert used["capability"] == ([12, 0] if name == "xpu" else [None, None]) and used["module"] == f"torch.{device}"


MEGATRON = """
import json
from plugrl.engines import EngineRegistry
from plugrl.plugins import load_plugins
load_plugins()
cls = EngineRegistry.get_engine_cls("language_model", "megatron", device="cuda", vendor="metax")
print(json.dumps([cls.__module__, cls.__mro__[1].__module__]))
"""


def test_megatron_is_the_vendors_own_start_of_its_packages_engine(answer: Callable[..., Any]) -> None:
    found = answer(MEGATRON, torch=True)
    assert found == ["plugrl_platform_metax.engines.megatron", "plugrl_engine_megatron.engine"]


IPC = """
import json, os, sys
from pathlib import Path
from plugrl_platform_npu.platform import NpuPlatform
import platform as host
folder = Path(os.environ["ASCEND_HOME_PATH"]) / f"{host.machine()}-linux"
folder.mkdir(parents=True)
answers = []
for driver, toolkit in json.loads(sys.argv[1]):
    os.environ["STAND_IN_DRIVER"] = driver
    (folder / "ascend_toolkit_install.info").write_text(f"package_name=toolkit\\nversion={toolkit}\\n")
    answers.append(NpuPlatform().is_ipc_supported())
print(json.dumps(answers))
"""


def test_an_npu_shares_memory_from_certain_versions_on(answer: Callable[..., Any], tmp_path: Any) -> None:
    cases = {
        ("25.3.RC1", "8.3.RC1"): True,
        ("25.3.rc1.2", "8.3.0"): True,
        ("25.5.t3.b001", "9.0.0"): True,
        ("25.2.0", "8.3.RC1"): False,
        ("25.5.0", "8.2.RC1"): False,
        ("nonsense", "8.3.0"): False,
    }
    variables = {"ASCEND_HOME_PATH": str(tmp_path / "cann")}
    found = answer(IPC, "sdk_ascend", argument=list(map(list, cases)), torch=True, **variables)
    assert dict(zip(cases, found, strict=True)) == cases
