"""Building the C++ part once for a version of torch, and loading it.

A library is kept under the hash of everything that decides what it is. Processes that need it at the same time wait for
the one that builds; that one holds a lock of the operating system, which ends with it, and the finished library appears
under its name in one step. So neither a build that is killed nor one that fails leaves anything in the way.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from plugrl_platform_vdev.settings import read_settings

BUILD_TIMEOUT_S = 900.0
"""Seconds that one compiler call has, and that a process waits for another one's build."""

_SOURCES = Path(__file__).resolve().parent / "csrc"
_MODULE = "_vdev"
_POLL_S = 0.2
_FIRST_UNIT = ("autocast.cpp", "operators.cpp", "recurrent.cpp")
"""Sources that take as long to compile as all others, so that two processors finish together."""

# Measured: -O1 makes a small training step three times as fast as -O0 and costs a fifth more time to build.
_FLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-w")


def compiler() -> str | None:
    """Return the C++ compiler: ``CXX``, else g++, else c++; None where there is none."""
    named = os.environ.get("CXX", "").strip()
    return shutil.which(named) if named else shutil.which("g++") or shutil.which("c++")


def library_path() -> Path:
    """Return where the library of these sources, this torch and this Python is, or will be."""
    digest = hashlib.sha256()
    for part in (torch.__version__, sys.version, sysconfig.get_platform(), *_FLAGS):
        digest.update(part.encode() + b"\0")
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return _cache() / digest.hexdigest()[:16] / f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def is_built() -> bool:
    """Whether the library is there, so that loading it starts no compiler."""
    return library_path().exists()


def load() -> ModuleType:
    """Return the C++ part, built first where it has to be. Raises RuntimeError with the compiler's message."""
    path = library_path()
    if not path.exists():
        build_once(path)
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_file_location(_MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules["plugrl_platform_vdev._vdev"] = module
    return module


def _cache() -> Path:
    chosen = read_settings().cache
    home = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return chosen or Path(home).expanduser() / "plugrl" / "vdev"


def build_once(path: Path) -> None:
    """Build the library unless another process has done so by now. Raises RuntimeError when the build fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent / "lock"):
        if path.exists():
            return
        for left_behind in path.parent.glob("build-*"):
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
            os.replace(_compile(Path(folder)), path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a build. The system drops it with its process, so nobody waits for a build that was killed.

    Raises RuntimeError when another process holds it for longer than ``BUILD_TIMEOUT_S``.
    """
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"vdev: another process has been building the device for {BUILD_TIMEOUT_S:g} s ({path}). "
                        "End it, or set VDEV_CACHE to another folder."
                    ) from None
                time.sleep(_POLL_S)
        yield


def _compile(folder: Path) -> Path:
    """Compile all sources into ``folder`` and return the library in it."""
    cxx = compiler()
    if cxx is None:
        raise RuntimeError(
            "vdev: there is no C++ compiler to build the device. Install one (apt-get install g++), name it by CXX, "
            "or use the smaller build that needs none: VDEV_BUILD=python."
        )
    root = Path(torch.__file__).parent
    headers = root / "include"
    includes = (_SOURCES, headers, headers / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include"))
    flags = [*_FLAGS, *(f"-I{path}" for path in includes)]
    sources = _units(folder)
    objects = [source.with_suffix(".o") for source in sources]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [
            pool.submit(_run, [cxx, *flags, "-c", str(source), "-o", str(target)], folder)
            for source, target in zip(sources, objects, strict=True)
        ]
        for job in jobs:
            job.result()
    library = folder / "library.so"
    lib = root / "lib"
    names = [f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python")]
    _run([cxx, "-shared", *map(str, objects), "-o", str(library), f"-L{lib}", *names, f"-Wl,-rpath,{lib}"], folder)
    return library


def _units(folder: Path) -> list[Path]:
    """Write the files that are compiled. Reading torch's headers costs more than all sources, so few files have all."""
    names = [source.name for source in sorted(_SOURCES.glob("*.cpp"))]
    units = [[name for name in names if name in _FIRST_UNIT], [name for name in names if name not in _FIRST_UNIT]]
    paths = []
    for number, included in enumerate(units):
        paths.append(folder / f"unit{number}.cpp")
        paths[-1].write_text("".join(f'#include "{name}"\n' for name in included))
    return paths


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"vdev: {command[0]} took more than {BUILD_TIMEOUT_S:g} s for {command[-3]}.") from error
    if done.returncode != 0:
        raise RuntimeError(f"vdev: the build failed.\n{' '.join(command)}\n{done.stderr[:4000]}")
