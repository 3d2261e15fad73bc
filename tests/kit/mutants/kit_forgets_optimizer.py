"""An extension module with an engine that is wrong: a resumed run begins with an empty optimizer."""

from __future__ import annotations

from typing import Any

from plugrl.engines import EngineRegistry
from plugrl_engine_fsdp.backends import Fsdp2Engine


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu", vendor="cpu")
class ForgetfulEngine(Fsdp2Engine):
    """Restores everything but the moments."""

    def load_checkpoint(self, local_path: str, **kwargs: Any) -> None:
        """Load, and forget."""
        super().load_checkpoint(local_path, **kwargs)
        self.optimizer.state.clear()
