"""What the doctor says of this plugin."""

from __future__ import annotations

from plugrl.plugins.hookspecs import Check, hookimpl


@hookimpl
def doctor_checks() -> list[Check]:
    """The version of megatron-core, and what of it is bridged on this platform, each with its reason."""
    from plugrl.errors import MissingDependency
    from plugrl.platforms import get_platform
    from plugrl_engine_megatron.bridges import bridges_for, check_version, installed_version

    try:
        check_version()
    except MissingDependency as error:
        return [Check(name="megatron-core", ok=False, detail=str(error))]
    return [Check(name="megatron-core", ok=True, detail=str(installed_version()))] + [
        Check(name=f"megatron-core bridge: {bridge.name}", ok=True, detail=f"({bridge.versions}) {bridge.reason}")
        for bridge in bridges_for(get_platform())
    ]
