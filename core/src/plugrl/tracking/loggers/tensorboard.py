"""TensorBoard event files under `tensorboard/` in the run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugrl.tracking.loggers.base import Logger, Row, RunInfo, named, require


class TensorboardLogger(Logger):
    """Writes scalars, and samples as text. A resumed run hides what an interrupted one wrote after the checkpoint."""

    @classmethod
    def check(cls) -> None:
        """Import the package. Raises MissingDependency when it is not installed."""
        require("tensorboard", "tensorboard")

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self.check()
        module = require("torch.utils.tensorboard", "tensorboard", install="torch tensorboard")
        purge = None if info.resume_step is None else info.resume_step + 1
        self._writer = module.SummaryWriter(log_dir=str(info.directory / "tensorboard"), purge_step=purge)

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Write one scalar for each metric."""
        for key, value in named(metrics, phase).items():
            self._writer.add_scalar(key, value, step)

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Write the samples as one text."""
        blocks = ["\n".join(f"    {line}" for line in _text(row).splitlines()) for row in rows]
        self._writer.add_text(f"samples/{phase}", "\n\n---\n\n".join(blocks), step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def _text(row: Row) -> str:
    return "\n".join(f"{key}: {value}" for key, value in row.items())
