"""What is done to a policy's inputs before it and to its actions after it; travels with the checkpoint."""

from __future__ import annotations

from plugrl.processors.pipeline import POSTPROCESSOR, PREPROCESSOR, Pipeline
from plugrl.processors.registry import PROCESSOR_STEPS, ProcessorStep, register_processor_step

__all__ = [
    "POSTPROCESSOR",
    "PREPROCESSOR",
    "PROCESSOR_STEPS",
    "Pipeline",
    "ProcessorStep",
    "register_processor_step",
]
