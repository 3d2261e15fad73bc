"""Plugins in workers: the same set as on the driver, loaded before anything else, compared before the first use.

:func:`setup` is Ray's ``worker_process_setup_hook``. A hook that raises kills the worker with a message that blames the
wrong thing, so it never raises: it keeps its report, and :func:`verify` raises it at the first use. Processes that Ray
did not start call :func:`verify` alone.
"""

from __future__ import annotations

import os
import socket
import traceback
from dataclasses import dataclass

from plugrl.environment import in_force, read_environment
from plugrl.errors import FingerprintMismatch, PluginError
from plugrl.plugins.fingerprint import decode_rows, describe_difference, encode_rows
from plugrl.plugins.ledger import Ledger
from plugrl.plugins.loader import load_plugins
from plugrl.plugins.patches import apply_patches

SETUP_HOOK = "plugrl.plugins.bootstrap.setup"
"""The dotted path for ``runtime_env["worker_process_setup_hook"]``: a text, so that no function is pickled."""

_RESERVED = ("PLUGRL_", "VERL_", "RLINF_")


@dataclass(frozen=True)
class SetupReport:
    """What :func:`setup` found. ``failures`` are texts with tracebacks, for what is in no ledger."""

    ledger: Ledger | None
    failures: tuple[str, ...] = ()
    error: BaseException | None = None


_report: SetupReport | None = None


def worker_env_vars(ledger: Ledger | None = None) -> dict[str, str]:
    """Return the variables that make a worker load what the driver loaded.

    These are the variables in force, the list of admitted plugins, the fingerprint with its rows, and what plugins ask
    for in ``worker_env``. Nothing else is forwarded.

    Raises:
        PluginError: two plugins want different values of one variable, or a plugin sets one of PlugRL's own.
    """
    ledger = ledger or load_plugins()
    admitted = sorted({record.name for record in ledger.records if record.state != "disabled"})
    return {
        **_plugin_variables(ledger),
        **in_force(),
        "PLUGRL_PLUGINS": ",".join(admitted),
        "PLUGRL_FINGERPRINT": ledger.fingerprint,
        "PLUGRL_PLUGIN_ROWS": encode_rows(ledger.rows),
    }


def setup() -> None:
    """Load plugins and extension modules in this worker process; never raises."""
    global _report
    ledger: Ledger | None = None
    failures: list[str] = []
    first: BaseException | None = None
    for step in (_load, _call_user_hook):
        try:
            ledger = step() or ledger
        except BaseException as error:
            first = first or error
            failures.append("".join(traceback.format_exception(error)))
    _report = SetupReport(ledger, tuple(failures), first)


def loaded() -> Ledger | None:
    """Return what this process has loaded, whether it may be used or not; None where setting up failed."""
    return load_plugins(fatal=False, quiet=True) if _report is None else _report.ledger


def verify(node: str = "") -> Ledger:
    """Return this worker's ledger if it may be used, after applying the plugins' patches.

    ``node`` is the name of Ray's node for the messages; several may run on one host.

    Raises:
        FingerprintMismatch: the driver has other plugins; the text names node, process and each difference.
        PluginError: setting up failed here, or what the user named failed.
    """
    if _report is None:
        setup()
    report = _report
    assert report is not None
    where = f"Worker pid {os.getpid()} on {socket.gethostname()}" + (f" (node {node})" if node else "")
    if report.ledger is None or report.failures:
        details = "\n".join(report.failures)
        raise PluginError(f"{where} could not set up: {report.error!r}\n{details}") from report.error
    _compare(where, report.ledger)
    if report.ledger.errors:
        first = report.ledger.errors[0]
        raise PluginError(f"{where}: {first}") from first
    apply_patches(report.ledger)
    return report.ledger


def _load() -> Ledger:
    return load_plugins(fatal=False, quiet=True)


def _call_user_hook() -> None:
    """Call the user's own setup hook, which PlugRL's took the only place of."""
    path = read_environment().setup_hook
    if path:
        from plugrl.registry import import_target

        module, _, name = path.rpartition(".")
        import_target(path if ":" in path else f"{module}:{name}")()


def _compare(where: str, ledger: Ledger) -> None:
    environment = read_environment()
    if environment.fingerprint in (None, ledger.fingerprint):
        return
    differences = describe_difference(ledger.rows, decode_rows(environment.plugin_rows))
    text = f"{where} {'; '.join(differences) or 'has another plugin fingerprint than the driver'}."
    broken = [record for record in ledger.records if record.is_broken]
    reasons = [f"\n{record.sentence()}\n{record.traceback}".rstrip() for record in broken]
    raise FingerprintMismatch(f"{text} Install the same set on every node." + "".join(reasons))


def _plugin_variables(ledger: Ledger) -> dict[str, str]:
    variables: dict[str, str] = {}
    owners: dict[str, str] = {}
    for record in ledger.active:
        for name, value in ((record.manifest and record.manifest.worker_env) or {}).items():
            if name.startswith(_RESERVED):
                raise PluginError(f"Plugin {record.name} sets {name} in worker_env; only the user may set it.")
            if variables.setdefault(name, value) != value:
                raise PluginError(f"Plugins {owners[name]} and {record.name} want different values of {name}.")
            owners[name] = record.name
    return variables
