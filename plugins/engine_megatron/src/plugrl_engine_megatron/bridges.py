"""What lets megatron-core run where there is no CUDA: it names that device in some places, whatever the tensors are on.

The library is not edited: names are bound anew in its modules, in the processes that train. On CUDA nothing is.
``plugrl plugins doctor`` lists these bridges.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from plugrl.errors import MissingDependency
from plugrl.platforms import PlatformBase
from plugrl.targets import is_importable

_log = logging.getLogger(__name__)

DISTRIBUTION = "megatron-core"
SUPPORTED = ">=0.16,<0.17"
"""Versions that the engine and its bridges were written against."""

_LIBRARY = "megatron.core"
_FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")
_TYPES = {"FloatTensor": torch.float32, "BFloat16Tensor": torch.bfloat16, "HalfTensor": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """One thing that is other than in the library. versions: those of megatron-core that need it."""

    name: str
    reason: str
    versions: str


COMPILE = Bridge(
    name="torch.compile while megatron.core is imported",
    reason="small helpers are compiled when first called, which needs a C++ compiler on a host and gains nothing there",
    versions=">=0.16,<0.17",
)
DEVICE = Bridge(
    name="torch as megatron.core's modules see it",
    reason='schedules, communication and optimizer make tensors with device="cuda" or on torch.cuda.current_device()',
    versions=">=0.16,<0.17",
)
RANDOM = Bridge(
    name="random state in megatron.core.tensor_parallel.random",
    reason="recomputation saves and restores the generator of the CUDA device through private functions of torch",
    versions=">=0.16,<0.17",
)
TYPES = Bridge(
    name="parameter types while the optimizer is built",
    reason='parameters are sorted by whether their type is called "torch.cuda.FloatTensor" and so on',
    versions=">=0.16,<0.17",
)
ROUTER = Bridge(
    name="te_general_gemm in megatron.core.transformer.moe.moe_utils",
    reason="without Transformer Engine, on whatever device, a router asks for a name that was never bound",
    versions=">=0.16,<0.17",
)
COUNTS = Bridge(
    name="maybe_move_tensor_to_cpu in megatron.core.transformer.moe.token_dispatcher",
    reason="how many tokens go to which expert is told to collectives as numbers only where a tensor is on CUDA",
    versions=">=0.16,<0.17",
)
BRIDGES = (COMPILE, DEVICE, RANDOM, TYPES, COUNTS)
"""Those of platforms without CUDA."""


def needed(platform: PlatformBase) -> bool:
    """Whether anything but :data:`ROUTER` is bridged on a platform."""
    return platform.device_name != "cuda"


def lacks_transformer_engine() -> bool:
    """Whether :data:`ROUTER` is needed."""
    return not is_importable("transformer_engine")


def bridges_for(platform: PlatformBase) -> tuple[Bridge, ...]:
    """Return what is bridged here."""
    return (*(BRIDGES if needed(platform) else ()), *((ROUTER,) if lacks_transformer_engine() else ()))


def installed_version() -> str | None:
    """The installed version of megatron-core, None without one."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version() -> None:
    """Raise MissingDependency when megatron-core is missing or in a version that was never tried."""
    from packaging.specifiers import SpecifierSet

    found = installed_version()
    if found is None or not SpecifierSet(SUPPORTED).contains(found, prereleases=True):
        have = "is not installed" if found is None else f"is {found}"
        raise MissingDependency(
            f"{DISTRIBUTION} {have}; the megatron engine was written for {SUPPORTED}. Run: pip install --no-deps "
            f"'{DISTRIBUTION}{SUPPORTED}'"
        )


@contextmanager
def importing(platform: PlatformBase) -> Iterator[None]:
    """Import parts of megatron.core inside; afterwards everything but the types is bridged, where it must be."""
    compile_, bridged = torch.compile, needed(platform)
    with warnings.catch_warnings():
        # They tell of Apex, Transformer Engine and torch.jit, which nobody here has asked for.
        warnings.simplefilter("ignore")
        if bridged:
            torch.compile = _not_compiled  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.compile = compile_
    if bridged:
        _bridge_device(platform)
        _bridge_random(platform)
        _bridge_counts()
    if lacks_transformer_engine():
        _bridge_router()


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out, inside, what megatron-core is warned of that nobody here can change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"megatron\.")
        # It calls collectives by names that newer torch has replaced, and reads gradients of parts of parameters.
        warnings.filterwarnings("ignore", category=FutureWarning, message=r"`torch\.distributed\.")
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield


def _not_compiled(model: Any = None, **_: Any) -> Any:
    return model if model is not None else lambda function: function


# --------------------------------------------------------------------- device
class _TorchView(types.ModuleType):
    """torch, but what would be made on CUDA is made on the platform's device, and ``torch.cuda`` is the platform's."""

    def __init__(self, platform: PlatformBase) -> None:
        super().__init__("torch")
        device = _device_of(platform)
        self.cuda = _CudaView(platform, device)
        for name in _FACTORIES:
            setattr(self, name, _on_device(getattr(torch, name), device))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _CudaView(types.ModuleType):
    """``torch.cuda``, answered by the platform; what the platform does not know is torch's own."""

    def __init__(self, platform: PlatformBase, device: torch.device) -> None:
        super().__init__("torch.cuda")
        self._module = platform.device_module
        self.current_device = lambda: device
        self.is_available = lambda: True
        self.synchronize = lambda *_: platform.synchronize()
        self.empty_cache = platform.empty_cache
        self.manual_seed = platform.manual_seed
        self.get_rng_state = lambda *_, **__: platform.rng_state()
        self.set_rng_state = lambda state, *_: platform.set_rng_state(state)
        if device.type == "cpu":
            self.Stream = _HostStream

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        return getattr(module, name) if hasattr(module, name) else getattr(torch.cuda, name)


class _HostStream(torch.cpu.Stream):
    """torch's stream of the host, whose event can be waited for too: all work is done when it is recorded."""

    def record_event(self, event: Any = None) -> Any:  # type: ignore[override]
        return event or types.SimpleNamespace(synchronize=lambda: None, wait=lambda *_: None)


def _device_of(platform: PlatformBase) -> torch.device:
    name = platform.device_name
    return torch.device(name) if name == "cpu" else torch.device(name, platform.current_device())


def _on_device(factory: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "cuda":
            kwargs["device"] = device
        return factory(*args, **kwargs)

    return make


def _bridge_device(platform: PlatformBase) -> None:
    """Bind ``torch`` anew in every module of the library that is loaded."""
    view = _TorchView(platform)
    for name, module in list(sys.modules.items()):
        if (name == _LIBRARY or name.startswith(f"{_LIBRARY}.")) and vars(module).get("torch") is torch:
            module.torch = view  # type: ignore[attr-defined]


# --------------------------------------------------------------------- random state
def _bridge_random(platform: PlatformBase) -> None:
    """Let the tracker of random states read and set the platform's generator."""
    module: Any = importlib.import_module(f"{_LIBRARY}.tensor_parallel.random")
    # Private, since the public callers hold them by these names.
    module._get_cuda_rng_state = lambda *_, **__: platform.rng_state()
    module._set_cuda_rng_state = lambda state, *_, **__: platform.set_rng_state(state)


# --------------------------------------------------------------------- experts
def _bridge_router() -> None:
    """Bind the name to what the library itself binds elsewhere: nothing, so that torch multiplies."""
    module: Any = importlib.import_module(f"{_LIBRARY}.transformer.moe.moe_utils")
    if not hasattr(module, "te_general_gemm"):
        module.te_general_gemm = None


def _bridge_counts() -> None:
    """Move counts to the host from whatever device."""
    module: Any = importlib.import_module(f"{_LIBRARY}.transformer.moe.token_dispatcher")
    module.maybe_move_tensor_to_cpu = _on_host


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    host = tensor.cpu()
    return host.numpy() if as_numpy else host


# --------------------------------------------------------------------- types
@contextmanager
def sortable_types(platform: PlatformBase, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Let parameters of other devices call themselves CUDA's inside."""
    if not needed(platform):
        yield
        return
    names = {dtype: f"torch.cuda.{name}" for name, dtype in _TYPES.items()}
    changed: list[Any] = list(parameters)
    for parameter in changed:
        parameter.type = lambda name=names[parameter.dtype]: name
    try:
        yield
    finally:
        for parameter in changed:
            del parameter.type
