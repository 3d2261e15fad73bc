"""Tensors of devices: which way is chosen between two places, and what a platform has to offer for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from plugrl.config.schema import ClusterConfig
from plugrl.errors import TransportError
from plugrl.runtime.network import limits_of
from plugrl.runtime.transport import EndpointConfig
from plugrl.runtime.transport.address import Address
from plugrl.runtime.transport.choice import PayloadSpec, choose
from plugrl.runtime.transport.codec import decode, encode
from plugrl.runtime.transport.device_paths import DevicePaths, Packing, share

LARGE = 2**20


def place(name: str, device: str, node: str = "here") -> Address:
    return Address(uid=name, name=name, node=node, pid=1, path="", host="127.0.0.1", port=1, device=device)


def spec(ipc: str = "", ccl: str = "", kinds: tuple[str, ...] = ("board", "cpu"), **more: Any) -> PayloadSpec:
    return PayloadSpec(size=LARGE, device_types=kinds, paths=DevicePaths("board", ipc, ccl, "boardccl"), **more)


ONE, TWIN, OTHER, FAR = place("a", "B0"), place("b", "B0"), place("c", "B1"), place("d", "B0", "there")
HOST = place("e", "")


@pytest.mark.parametrize(
    ("target", "what", "way", "reason"),
    [
        (TWIN, spec(), "ipc", "same device: handle of its memory, one copy there"),
        (OTHER, spec(), "ccl", "different devices: the platform's collectives"),
        (FAR, spec(), "ccl", "different devices: the platform's collectives"),
        (TWIN, spec(ipc="shares none"), "shm", "same node: shared memory, one copy; through the host: shares none"),
        (OTHER, spec(ccl="none for it"), "shm", "same node: shared memory, one copy; through the host: none for it"),
        (FAR, spec(ccl="none for it"), "net", "nothing nearer: sockets; through the host: none for it"),
        (HOST, spec(), "shm", "same node: shared memory, one copy; through the host: e has no device"),
        (OTHER, spec(kinds=("board", "chip")), "shm",
         "same node: shared memory, one copy; through the host: tensors of several kinds of devices"),
        (OTHER, spec(kinds=("cpu",)), "shm", "same node: shared memory, one copy"),
        (OTHER, spec(kinds=("cpu",), strict_device=True), "net", "nothing nearer: sockets"),
    ],
)  # fmt: skip
def test_the_way_between_two_devices_is_named_with_its_reason(
    target: Address, what: PayloadSpec, way: str, reason: str
) -> None:
    found = choose(ONE, target, what)
    assert (found.transport.name, found.reason) == (way, reason)


def test_a_way_that_is_asked_for_and_cannot_be_says_why() -> None:
    with pytest.raises(TransportError, match=r'transport="ccl" cannot carry .* Possible: ipc, net, shm'):
        choose(ONE, TWIN, spec(), "ccl")
    with pytest.raises(TransportError, match="board shares none"):
        choose(ONE, TWIN, spec(ipc="board shares none"), "ipc")
    assert choose(ONE, TWIN, spec(), "shm").transport.name == "shm"


def test_a_platform_says_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch.distributed.Backend.backend_capability, "metaccl", ["meta"])
    board = SimpleNamespace(device_name="meta", device_module=None, is_ipc_supported=lambda: True,
                            communication_backend_name=lambda: "metaccl")  # fmt: skip
    found = DevicePaths.of(board, 1)  # type: ignore[arg-type]
    assert found == DevicePaths("meta", "", "", "metaccl", 1)
    assert str(found.place("meta")) == "meta:1" and found.place("cpu") is None
    bare = SimpleNamespace(**{**vars(board), "device_name": "chip", "is_ipc_supported": lambda: False})
    found = DevicePaths.of(bare, 0)  # type: ignore[arg-type]
    assert found.ipc == "chip shares no device memory between processes" and found.ccl == "metaccl does not serve chip"


def test_an_export_keeps_parameters_and_gives_every_tensor_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host, where the codec must take its tensors for those of a device."""
    tree = {"w": torch.nn.Parameter(torch.arange(6.0).view(2, 3).t()), "b": [torch.tensor([True]), torch.empty(0, 2)]}
    packing = Packing()
    monkeypatch.setattr("plugrl.runtime.transport.codec.is_on_host", lambda tensor: False)
    encoded = encode(tree, packing)
    found = decode(encoded.header, b"", on_device=packing.flat())
    assert encoded.size == 0 and len(encoded.exported) == 3
    assert isinstance(found["w"], torch.nn.Parameter) and torch.equal(found["w"], tree["w"])  # type: ignore[arg-type]
    assert torch.equal(found["b"][0], torch.tensor([True])) and found["b"][1].shape == (0, 2)


def test_a_handle_is_opened_and_copied() -> None:
    tensor = torch.arange(4.0)
    function, arguments = share(tensor)
    found = function(*arguments)
    tensor += 1
    assert found.tolist() == [0, 1, 2, 3], "the receiver still looks into the sender's memory"


def test_limits_come_from_the_configuration() -> None:
    transport = {"flows": 3, "inline_kib": 1, "memory_mib": 2, "window_mib": 4, "strict_device": True}
    limits = limits_of(ClusterConfig.model_validate({"transport": transport}).transport)
    config = EndpointConfig(name="a", run_id="r", folder="/", **limits)
    assert (config.flows, config.inline_bytes, config.memory_limit(), config.window_bytes, config.strict_device) == (
        3, 1024, 2 * 2**20, 4 * 2**20, True,
    )  # fmt: skip
    plain = EndpointConfig(name="a", run_id="r", folder="/", secret=b"s")
    assert replace(plain, **limits_of(ClusterConfig().transport)) == plain, "two places hold different defaults"
