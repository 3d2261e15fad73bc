"""A plan as a file: the case, the result for it, what made it, and for which configuration.

Nothing of a plan is copied by hand: who applies it reads this file.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl import __version__
from plugrl.errors import ConfigError
from plugrl.runtime.planner.case import COST_MODEL, MODES, Mode, Plan
from plugrl.runtime.planner.collapse import CollapsedCase, collapse
from plugrl.runtime.planner.search import solve_case

FORMAT = "plugrl-plan"
_VERSION = 1


@dataclass(frozen=True)
class PlanArtefact:
    """A solved case.

    ``case`` and ``result`` have the JSON forms of the cost model. ``loops`` says for each loop of the case and each
    class how the loop runs in that class's plan. ``configuration`` is the hash of the configuration that was planned,
    and ``profile`` what was measured for it; both are empty where there was only a case file.
    """

    case: dict[str, Any]
    result: dict[str, Any]
    loops: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    configuration: str = ""
    profile: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Plan | None:
        """The best plan of all classes, None where there is none."""
        best = self.result.get("best")
        return None if best is None else Plan.from_dict(self.result["by_mode"][best])

    def plan_of(self, mode: Mode) -> Plan | None:
        """The best plan of a class, None where it has none."""
        found = self.result["by_mode"][mode]
        return None if "infeasible" in found else Plan.from_dict(found)

    def to_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        return {
            "format": FORMAT,
            "version": _VERSION,
            "versions": self.versions,
            "configuration": self.configuration,
            "profile": self.profile,
            "case": self.case,
            "result": self.result,
            "loops": self.loops,
        }


def make_artefact(case: Mapping[str, Any], configuration: Mapping[str, Any] | None = None) -> PlanArtefact:
    """Solve a case and return its artefact.

    Args:
        case: in its JSON form.
        configuration: the resolved configuration that the case was made from.

    Raises:
        ConfigError: the case cannot be read; with every problem and its path.
    """
    collapsed = collapse(case)
    result = solve_case(collapsed.case).to_dict()
    versions = {"plugrl": __version__, "python": platform.python_version(), "cost_model": COST_MODEL}
    hashed = "" if configuration is None else hash_of(configuration)
    return PlanArtefact(dict(case), result, _chosen_loops(collapsed, result), versions, hashed)


def hash_of(configuration: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values, the same whatever the order of their keys."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_artefact(artefact: PlanArtefact, path: Path) -> None:
    """Write the file in one step. Raises UserError when the file system does not take it."""
    from plugrl.tracking.files import write_atomic

    write_atomic(path, json.dumps(artefact.to_dict(), indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping. Raises ConfigError when there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a mapping, not a {type(data).__name__}.")
    return data


def artefact_from_dict(data: Mapping[str, Any]) -> PlanArtefact:
    """Return the artefact that a file held. Raises ConfigError when it is none, or one of another version."""
    if data.get("format") != FORMAT:
        raise ConfigError(f"format: must be {FORMAT!r}, not {data.get('format')!r}: this is no plan.")
    version, model = data.get("version"), data.get("versions", {}).get("cost_model")
    if version != _VERSION or model != COST_MODEL:
        raise ConfigError(
            f"version: the plan has format {version} and cost model {model}, this PlugRL reads {_VERSION} and "
            f"{COST_MODEL}: plan again."
        )
    missing = [key for key in ("case", "result") if not isinstance(data.get(key), Mapping)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing in the plan.")
    return PlanArtefact(
        dict(data["case"]), dict(data["result"]), dict(data.get("loops", {})), dict(data["versions"]),
        str(data.get("configuration", "")), dict(data.get("profile", {})),
    )  # fmt: skip


def _chosen_loops(collapsed: CollapsedCase, result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    chosen: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        for phase in result["by_mode"][mode].get("phases", ()):
            for stage in phase["stages"]:
                for name in set(stage["components"]) & collapsed.arrangements.keys():
                    found = collapsed.arrangements[name][stage["devices"], phase["chunk"]]
                    chosen.setdefault(name, {})[mode] = found.to_dict()
    return chosen
