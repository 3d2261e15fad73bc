"""The engine by the name under which it is registered; vendors' plugins derive from it.

Nothing of megatron-core is imported before :meth:`MegatronEngine.initialize`, so that a driver can ask the class what
it objects to.
"""

from __future__ import annotations

from plugrl_engine_megatron.engine import MegatronEngine

__all__ = ["MegatronEngine"]
