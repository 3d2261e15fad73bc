"""Extension modules: code that registers itself, named by ``RLINF_EXT_MODULE`` instead of an entry point.

Each is imported on driver and workers after the plugins, and its ``register()`` is called, if it has one, once in a
process. The user named it, so a failure is an error and never only a warning.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
import traceback
from collections.abc import Iterable

from plugrl.errors import STOPS, PluginError, one_line
from plugrl.plugins import guard
from plugrl.plugins.commit import apply_all
from plugrl.plugins.ledger import ExtensionRecord
from plugrl.plugins.stage import forget_modules
from plugrl.provenance import Origin, registering
from plugrl.registry import staging

logger = logging.getLogger(__name__)


def load_extensions(modules: Iterable[str]) -> tuple[ExtensionRecord, ...]:
    """Load the modules in the given order; a failing one registers nothing and does not stop the others."""
    return tuple(_load(module) for module in modules)


def extension_error(record: ExtensionRecord) -> PluginError:
    """Return the error of a failed module, with the original exception chained."""
    error = PluginError(
        f"Extension module {record.module} (RLINF_EXT_MODULE) failed: {record.reason}. "
        "It must be importable on the driver and on every worker."
    )
    error.__cause__ = record.error
    return error


def _load(name: str) -> ExtensionRecord:
    started = time.perf_counter()
    failure: BaseException | None = None
    with guard.watching_imports() as heavy:
        try:
            _import_and_register(name)
        except STOPS:
            raise
        except BaseException as error:
            failure = error
    record = ExtensionRecord(module=name, import_ms=(time.perf_counter() - started) * 1000, heavy_imports=tuple(heavy))
    return record if failure is None else _failed(record, failure)


def _import_and_register(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(f'"{name}" is no name of a module: write package.module, and commas between several')
    origin = Origin(source="extension module", module=name)
    with guard.loading(name), registering(origin), staging() as claims:
        try:
            module = importlib.import_module(name)
            register = getattr(module, "register", None)
            if callable(register) and inspect.iscoroutine(waiting := register()):
                waiting.close()
                raise PluginError("its register() is asynchronous: write a plain function")
            notes = apply_all(claims)
        except BaseException:
            forget_modules(claims)
            raise
    for note in notes:
        logger.warning("%s", note)


def _failed(record: ExtensionRecord, error: BaseException) -> ExtensionRecord:
    return ExtensionRecord(
        module=record.module,
        state="failed",
        reason=one_line(error).rstrip("."),
        error=error,
        traceback="".join(traceback.format_exception(error)),
        import_ms=record.import_ms,
        heavy_imports=record.heavy_imports,
    )
