"""The engines of plugrl-engine-fsdp on {{ cookiecutter.vendor }}'s devices. Only ``initialize`` may differ."""

from __future__ import annotations

from plugrl_engine_fsdp.backends import DdpEngine, Fsdp1Engine, Fsdp2Engine
{% if not cookiecutter.average_reduction %}
from plugrl_engine_fsdp.reduction import sum_instead_of_average
{% endif %}


class {{ cookiecutter.__class }}Fsdp2Engine(Fsdp2Engine):
    """Parameters, gradients and optimizer state sharded over all ranks."""

    def initialize(self) -> None:
{% if cookiecutter.average_reduction %}
        """Build everything as the parent does."""
        super().initialize()
{% else %}
        """Build everything as the parent does, then reduce by sums: {{ cookiecutter.comm_backend }} cannot average."""
        super().initialize()
        sum_instead_of_average(self.module)
{% endif %}


class {{ cookiecutter.__class }}Fsdp1Engine(Fsdp1Engine):
    """torch's FSDP1{{ ', which divides by itself' if not cookiecutter.average_reduction }}."""


class {{ cookiecutter.__class }}DdpEngine(DdpEngine):
    """A whole copy on every rank{{ '; gradients are divided before they are summed' if not cookiecutter.average_reduction }}."""
