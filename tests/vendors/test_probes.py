"""Probes with and without stand-in SDKs, and which platform a machine gets, in a process that never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MACHINES = """
import importlib, json, os, sys, tempfile
from pathlib import Path
from plugrl.errors import UserError
from plugrl.platforms.selection import reset, select
from plugrl.plugins import load_plugins

load_plugins()
names, machines = json.loads(sys.argv[1])
modules = {name: importlib.import_module(f"plugrl_platform_{name}.probe") for name in names}
path, programs, variables = list(sys.path), os.environ["PATH"], dict(os.environ)
stand_ins = Path(os.environ["STAND_INS"])

def imitate(machine):
    sys.path[:] = [str(stand_ins / name) for name in machine.get("sdk", ())] + path
    importlib.invalidate_caches()
    os.environ.clear(); os.environ.update(variables)
    bins = [str(stand_ins / name / "bin") for name in machine.get("sdk", ())]
    os.environ["PATH"] = os.pathsep.join([*bins, programs])
    os.environ.update(machine.get("env", {}))
    files = machine.get("files", {})
    for module in modules.values():
        if hasattr(module, "device_files"):
            module.device_files = lambda *patterns: sum(files.get(pattern, 0) for pattern in patterns)
    nodes = Path(tempfile.mkdtemp())
    for number, text in enumerate(machine.get("nodes", ())):
        (nodes / str(number)).mkdir(); (nodes / str(number) / "gpu_id").write_text(text)
        (nodes / f"renderD{number}" / "device").mkdir(parents=True)
        (nodes / f"renderD{number}" / "device" / "vendor").write_text(text)
    for module in modules.values():
        for name in {"TOPOLOGY", "RENDER_NODES"} & vars(module).keys():
            setattr(module, name, nodes)
    reset()

answers = []
for machine in machines:
    imitate(machine)
    probe = modules[machine["asks"]].probe() if "asks" in machine else None
    try:
        chosen = select().platform_name
    except UserError as error:
        chosen = str(error)
    answers.append([None if probe is None else getattr(probe, "count", probe.__dict__.get("reason")), chosen])
print(json.dumps([answers, "torch" in sys.modules]))
"""

DAVINCI = {"/dev/davinci[0-9]*": 8}
CAMBRICON = {"/dev/cambricon_dev[0-9]*": 4}
GCU = {"/dev/gcu[0-9]": 8}
NVIDIA = {"/proc/driver/nvidia/gpus/*": 8}

# what the machine has, what the probe of one platform answers (devices or a reason), which platform is chosen
CASES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "nothing": ({}, None, "cpu"),
    "nvidia": ({"sdk": ["sdk_nvidia"], "files": NVIDIA, "asks": "cuda"}, 8, "cuda"),
    "nvidia in a container": ({"sdk": ["sdk_nvidia"], "files": {"/dev/nvidia[0-9]*": 1}, "asks": "cuda"}, 1, "cuda"),
    "nvidia without files": ({"sdk": ["sdk_nvidia"], "asks": "cuda"}, 0, "cuda"),
    "nvidia without a driver": (
        {"sdk": ["sdk_nvidia"], "asks": "cuda", "env": {"STAND_IN_SMI_FAILS": "1"}},
        "no driver found: no /dev/nvidia*, and nvidia-smi is missing or fails",
        "cpu",
    ),
    "nvidia, torch for the processor": (
        {"files": NVIDIA, "asks": "cuda"},
        "torch is missing or built without CUDA",
        "cpu",
    ),
    "nvidia, masked": (
        {"sdk": ["sdk_nvidia"], "files": NVIDIA, "asks": "cuda", "env": {"CUDA_VISIBLE_DEVICES": "2,5,7"}},
        3,
        "cuda",
    ),
    "nvidia, all masked": (
        {"sdk": ["sdk_nvidia"], "files": NVIDIA, "asks": "cuda", "env": {"CUDA_VISIBLE_DEVICES": ""}},
        "no device visible (CUDA_VISIBLE_DEVICES is '')",
        "cpu",
    ),
    "amd": ({"sdk": ["sdk_rocm"], "nodes": ["0", "51234", "60012"], "asks": "rocm"}, 2, "rocm"),
    "amd is not nvidia": (
        {"sdk": ["sdk_rocm", "sdk_nvidia/bin"], "files": NVIDIA, "asks": "cuda"},
        "torch is built for ROCm",
        "rocm",
    ),
    "amd without devices": (
        {"sdk": ["sdk_rocm"], "nodes": ["0"], "asks": "rocm", "env": {"STAND_IN_SMI_FAILS": "1"}},
        "no device in the driver's topology, and rocm-smi is missing or fails",
        "cpu",
    ),
    "metax": ({"sdk": ["sdk_metax"], "asks": "metax"}, 0, "metax"),
    "metax, imitating nvidia": ({"sdk": ["sdk_metax", "sdk_nvidia"], "files": NVIDIA, "asks": "cuda"}, 8, "metax"),
    "metax, its command failing": (
        {"sdk": ["sdk_metax"], "asks": "metax", "env": {"STAND_IN_SMI_FAILS": "1"}},
        "mx-smi is missing or fails",
        "cpu",
    ),
    "ascend": ({"sdk": ["sdk_ascend"], "files": DAVINCI, "asks": "npu"}, 8, "npu"),
    "ascend, masked": (
        {"sdk": ["sdk_ascend"], "files": DAVINCI, "asks": "npu", "env": {"ASCEND_RT_VISIBLE_DEVICES": "4,5"}},
        2,
        "npu",
    ),
    "ascend without its extension": ({"files": DAVINCI, "asks": "npu"}, "torch_npu is not installed", "cpu"),
    "ascend without a driver": (
        {"sdk": ["sdk_ascend"], "asks": "npu"},
        "no driver found: no /dev/davinci[0-9]*",
        "cpu",
    ),
    "cambricon": ({"sdk": ["sdk_cambricon"], "files": CAMBRICON, "asks": "mlu"}, 4, "mlu"),
    "cambricon without its extension": ({"files": CAMBRICON, "asks": "mlu"}, "torch_mlu is not installed", "cpu"),
    "enflame": ({"sdk": ["sdk_enflame"], "files": GCU, "asks": "enflame"}, 8, "enflame"),
    "enflame, torch.cuda changed": (
        {"sdk": ["sdk_enflame", "sdk_nvidia"], "files": {**GCU, **NVIDIA}},
        None,
        "enflame",
    ),
    "intel": ({"sdk": ["sdk_intel"], "nodes": ["0x8086", "0x8086", "0x10de"], "asks": "xpu"}, 2, "xpu"),
    "intel without devices": (
        {"sdk": ["sdk_intel"], "nodes": ["0x10de"], "asks": "xpu"},
        "no driver found: no render node of Intel",
        "cpu",
    ),
    "intel without torch for it": (
        {"nodes": ["0x8086"], "asks": "xpu"},
        "torch is built without XPU, and intel_extension_for_pytorch is not installed",
        "cpu",
    ),
    "flagos beside nvidia": ({"sdk": ["sdk_flagos", "sdk_nvidia"], "files": NVIDIA, "asks": "flagos"}, 8, "cuda"),
    "flagos by name": (
        {"sdk": ["sdk_flagos", "sdk_nvidia"], "files": NVIDIA, "env": {"VERL_PLATFORM": "flagos"}},
        None,
        "flagos",
    ),
    "flagos without itself": ({"asks": "flagos"}, "neither flag_gems nor flagcx is installed", "cpu"),
    "two chips of equal rank": (
        {"sdk": ["sdk_ascend", "sdk_cambricon"], "files": {**DAVINCI, **CAMBRICON}},
        None,
        "Platforms mlu and npu are both available with priority 50",
    ),
    "the name of the vendor": ({"env": {"VERL_PLATFORM": " Huawei "}}, None, "npu"),
    "the name of the device type": ({"env": {"VERL_PLATFORM": "gcu"}}, None, "enflame"),
}


@pytest.fixture(scope="module")
def outcomes(answer: Callable[..., Any], vendors: list[Any]) -> tuple[dict[str, Any], bool]:
    """What each machine answers, and whether anything imported torch."""
    names = [vendor.name for vendor in vendors]
    known = {*names, "cpu", "Platforms"}
    concerned = {name: {case[0].get("asks", "cpu"), case[2].split()[0]} for name, case in CASES.items()}
    machines = {name: CASES[name][0] for name, platforms in concerned.items() if platforms <= known}
    found, has_torch = answer(MACHINES, argument=[names, list(machines.values())])
    return dict(zip(machines, found, strict=True)), has_torch


@pytest.mark.parametrize("name", CASES)
def test_a_machine_is_known_by_its_probe(name: str, outcomes: tuple[dict[str, Any], bool]) -> None:
    if name not in outcomes[0]:
        pytest.skip("its package is not here")
    _, count_or_reason, chosen = CASES[name]
    found, platform = outcomes[0][name]
    assert found == count_or_reason and platform.startswith(chosen)


def test_no_probe_imports_torch_or_an_sdk(outcomes: tuple[dict[str, Any], bool]) -> None:
    """The stand-in builds of torch cannot be imported at all, and nothing imported the one of this environment."""
    assert outcomes[1] is False
