"""Run by Ray's server as a worker: asks the preloaded process for a fork in its place, or becomes the worker itself.

Takes the place of Ray's ``setup_worker.py``, which imports Ray only to start another interpreter. It is run by its path
and imports nothing of the package: it is on the way of every worker.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

ADDRESS = "_PLUGRL_PRELOADED"
"""Variable with the path of the preloaded process's socket; empty or unset where there is none."""

RAYS_OWN = "_PLUGRL_SETUP_WORKER"
"""Variable with the path of Ray's own script."""

TIMEOUT_S = 30.0
"""Seconds for the answer: the preloaded process may still be importing, which a worker by itself would do as well.
Ray's server gives up a worker that has not come within 60 s."""

EARLY = re.compile(
    r"PYTHON|LD_|MALLOC_|GLIBC_|(OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|VECLIB|DNNL|ONEDNN)_|TORCH|PYTORCH|ATEN|HF_|TRANSFORMERS_"
    r"|ACCELERATE_|TOKENIZERS_|XDG_|LANG$|LC_|TZ$"
)
"""Variables that are read when an interpreter starts, or by what is preloaded when it is imported."""


def main() -> None:
    """Start the worker whose command line this is."""
    address, own = os.environ.pop(ADDRESS, ""), os.environ.pop(RAYS_OWN)
    arguments: list[str] = []
    language, context = "PYTHON", {}
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        if name == "--language":
            language = value
        elif name == "--serialized-runtime-env-context":
            context = json.loads(value or "{}")
        else:
            arguments.append(argument)
    if language != "PYTHON" or not is_plain(context):
        os.execv(sys.executable, [sys.executable, own, *sys.argv[1:]])
    for name, value in (context.get("env_vars") or {}).items():
        # As Ray does it: ${NAME} is replaced, by nothing where there is none.
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    if address and arguments[0].endswith(".py") and forked(address, arguments):
        return
    os.execv(sys.executable, [sys.executable, *arguments])


def is_plain(context: dict[str, Any]) -> bool:
    """Whether Ray's description of the worker asks for nothing but variables."""
    known = {"command_prefix", "env_vars", "py_executable", "override_worker_entrypoint", "java_jars"}
    other = context.get("command_prefix") or context.get("override_worker_entrypoint") or context.keys() - known
    return not other and context.get("py_executable", sys.executable) == sys.executable


def forked(address: str, arguments: list[str]) -> bool:
    """Ask for a fork and return whether there is one."""
    early = {name: value for name, value in os.environ.items() if EARLY.match(name)}
    request = {
        "arguments": arguments,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "early": early,
        "server": os.getppid(),
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            connection.connect(address)
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            return connection.recv(64) == b"yes"
    except OSError:
        return False


if __name__ == "__main__":
    main()
