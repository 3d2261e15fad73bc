"""What is used of megatron-core stands in one module, is public, and is bridged without CUDA alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import plugrl_engine_megatron
from plugrl.errors import MissingDependency
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl_engine_megatron import bridges
from plugrl_engine_megatron.hooks import doctor_checks

SOURCES = sorted(Path(plugrl_engine_megatron.__file__).parent.glob("*.py"))
PRIVATE = {("bridges.py", "_get_cuda_rng_state"), ("bridges.py", "_set_cuda_rng_state")}
"""Private names of the library that are used; the module says why beside each of them."""


def test_only_one_module_imports_the_library_and_nothing_private() -> None:
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron"):
                assert source.name == "library.py", f"{source.name} imports {node.module}"
                assert not any(part.startswith("_") for part in node.module.split("."))
                assert not [name.name for name in node.names if name.name.startswith("_")]
            if isinstance(node, ast.Import):
                assert not [name.name for name in node.names if name.name.startswith("megatron")]


def test_private_names_are_those_that_are_listed() -> None:
    """Of modules and objects of the library, as attributes: what is private and not our own."""
    own = {node.name for source in SOURCES for node in ast.walk(ast.parse(source.read_text()))
           if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip
    found = set()
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                base = node.value
                if not (isinstance(base, ast.Name) and base.id in ("self", "cls", "torch")) and node.attr not in own:
                    found.add((source.name, node.attr))
    assert found == PRIVATE


def test_every_bridge_says_why_and_for_which_versions() -> None:
    from packaging.specifiers import SpecifierSet

    for bridge in (*bridges.BRIDGES, bridges.ROUTER):
        assert len(bridge.reason) > 40
        assert SpecifierSet(bridge.versions).contains(bridges.installed_version() or "")


class CudaLike(CpuPlatform):
    """A platform that says it is CUDA."""

    @property
    def device_name(self) -> str:
        """As CUDA's is."""
        return "cuda"


def test_nothing_is_bridged_on_cuda_but_a_fault_without_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bridges.needed(CudaLike()) and bridges.needed(CpuPlatform())
    assert bridges.bridges_for(CudaLike()) == (bridges.ROUTER,)
    monkeypatch.setattr(bridges, "lacks_transformer_engine", lambda: False)
    assert bridges.bridges_for(CudaLike()) == ()
    parameter = torch.nn.Parameter(torch.ones(1))
    with bridges.sortable_types(CudaLike(), [parameter]):
        assert parameter.type() == "torch.FloatTensor"
    with bridges.sortable_types(CpuPlatform(), [parameter]):
        assert parameter.type() == "torch.cuda.FloatTensor"
    assert parameter.type() == "torch.FloatTensor"


def test_torch_itself_is_left_alone() -> None:
    with use_platform(CpuPlatform()):
        before = torch.compile
        import plugrl_engine_megatron.library as library

        assert torch.compile is before
        view = library.parallel_state.torch
    assert view is not torch and view.cuda.current_device() == torch.device("cpu")
    assert view.zeros(1, device="cuda").device.type == "cpu" and view.nn is torch.nn
    assert not torch.cuda.is_available() and view.cuda.is_available()


def test_the_doctor_lists_version_and_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_platform(CpuPlatform()):
        found = {check.name: check for check in doctor_checks()}
    assert found["megatron-core"].ok and found["megatron-core"].detail == bridges.installed_version()
    for bridge in (*bridges.BRIDGES, bridges.ROUTER):
        assert bridge.reason in found[f"megatron-core bridge: {bridge.name}"].detail
    monkeypatch.setattr(bridges, "installed_version", lambda: "0.12.0")
    (check,) = doctor_checks()
    assert not check.ok and "megatron-core is 0.12.0" in check.detail and bridges.SUPPORTED in check.detail
    with pytest.raises(MissingDependency, match="pip install --no-deps"):
        bridges.check_version()
