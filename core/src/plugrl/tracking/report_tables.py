"""The parts of the report that say what ran: plugins, versions, configuration."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


def plugin_table(ledger: Mapping[str, Any]) -> str:
    """Return the plugin ledger as a table: name, version, state with its reason, what it provides."""
    rows: list[str] = []
    for record in _mappings(ledger.get("plugins")):
        state = str(record.get("state", ""))
        reason = escape(str(record.get("reason") or ""))
        kind = "good" if state == "active" else "none" if state == "disabled" else "bad"
        rows.append(
            f'<tr><td class="whole">{escape(str(record.get("distribution") or record.get("name", "")))}</td>'
            f"<td>{escape(str(record.get('version') or ''))}</td>"
            f'<td><span class="{kind}">{escape(state)}</span>{": " + reason if reason else ""}</td>'
            f"<td>{escape(_provides(_mapping(record.get('provides'))))}</td></tr>"
        )
    for record in _mappings(ledger.get("extensions")):
        rows.append(
            f"<tr><td>{escape(str(record.get('module', '')))}</td><td></td>"
            f"<td>{escape(str(record.get('state', '')))}</td><td>extension module</td></tr>"
        )
    if not rows:
        return ""
    head = "<tr><th>Plugin</th><th>Version</th><th>State</th><th>Provides</th></tr>"
    return f'<h2>Plugins</h2><div class="card scroll"><table>{head}{"".join(rows)}</table></div>'


def _provides(provided: Mapping[str, Any]) -> str:
    return "; ".join(f"{kind}: {', '.join(_texts(keys))}" for kind, keys in provided.items())


# A report is also made of what a killed run or a person's editor left behind.
def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def version_list(versions: Mapping[str, Any]) -> str:
    """Return the versions of Python, PlugRL and the packages below it."""
    pairs: dict[str, Any] = {"Python": versions.get("python"), "CPUs": versions.get("cpus")}
    pairs |= _mapping(versions.get("plugrl"))
    pairs |= _mapping(versions.get("packages"))
    items = [
        f"<div><span>{escape(str(name))}</span>{escape(str(value))}</div>"
        for name, value in pairs.items()
        if value is not None
    ]
    if not versions or not items:
        return ""
    system, command = versions.get("system"), _texts(versions.get("command"))
    lines = [str(system)] if system else []
    lines += ["$ " + " ".join(command)] if command else []
    note = f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""
    return f'<h2>Versions</h2><div class="card">{note}<div class="versions">{"".join(items)}</div></div>'


def configuration(text: str) -> str:
    """Return the resolved configuration, folded."""
    if not text:
        return ""
    return (
        "<h2>Configuration</h2>"
        f'<details class="card"><summary>The resolved configuration</summary><pre>{escape(text)}</pre></details>'
    )
