"""The registry of loggers; the built-in ones are imported only when a run names them."""

from __future__ import annotations

from plugrl.registry import Registry
from plugrl.tracking.loggers.base import Logger

loggers: Registry[type[Logger]] = Registry("logger")

for _name, _target, _summary in (
    ("console", "plugrl.tracking.loggers.console:ConsoleLogger", "progress with the time left"),
    ("jsonl", "plugrl.tracking.loggers.jsonl:JsonlLogger", "metrics.jsonl and samples.jsonl in the run directory"),
    ("tensorboard", "plugrl.tracking.loggers.tensorboard:TensorboardLogger", "TensorBoard event files"),
    ("wandb", "plugrl.tracking.loggers.wandb:WandbLogger", "Weights & Biases"),
    ("swanlab", "plugrl.tracking.loggers.swanlab:SwanlabLogger", "SwanLab"),
    ("trackio", "plugrl.tracking.loggers.trackio:TrackioLogger", "Trackio"),
):
    loggers.register_target(_name, _target, summary=_summary)
