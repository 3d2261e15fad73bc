"""The kit for engines: what a training engine does with a small policy on one rank, for every backend of the plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from plugrl.engines.base import BaseEngine, Batch, BatchOptions, LossContext
from plugrl.engines.registry import EngineRegistry
from plugrl.metric import Metric
from plugrl.models.base import BasePolicy
from plugrl.registry import import_target
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal
from plugrl.testing.kit.context import HOST, Context
from plugrl.testing.kit.golden import TinyLM, tiny_lm, tokens

PROMPT, RESPONSE = 5, 6
MODEL_TYPE = "plugrl_kit_tiny"
OPTIM = {"lr": 1e-2, "clip_grad": 0.5, "total_training_steps": 20, "eps": 1e-3}
"""A large eps, since AdamW would blow up the rounding of gradients that are almost zero."""


class TinyPolicy(BasePolicy):
    """The language model of the kit as a text policy without padding."""

    def __init__(self, model: TinyLM) -> None:
        super().__init__()
        self.model = model

    def wrap_units(self) -> tuple[str, ...]:
        """The blocks of the model."""
        return ("Block",)

    def default_forward(
        self, forward_inputs: Mapping[str, Any], temperature: float = 1.0, compute_entropy: bool = False, **_: Any
    ) -> dict[str, Any]:
        """Log-probabilities of the response tokens, and their entropy when asked."""
        ids, mask = forward_inputs["input_ids"], forward_inputs["response_mask"]
        length = mask.shape[1]
        logs = (self.model(ids)[:, -length - 1 : -1].float() / temperature).log_softmax(-1)
        found = {"logprobs": logs.gather(-1, ids[:, -length:, None]).squeeze(-1) * mask}
        if compute_entropy:
            found["entropy"] = -(logs.exp() * logs).sum(-1) * mask
        return found


def rows(count: int = 8) -> dict[str, torch.Tensor]:
    """Return a fixed batch in the text layout; the lengths of the responses differ."""
    ids = tokens(count, PROMPT + RESPONSE)
    mask = (torch.arange(RESPONSE)[None] <= torch.arange(count)[:, None] % RESPONSE).long()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "response_mask": mask}


def loss(
    output: Mapping[str, torch.Tensor], batch: Batch, context: LossContext
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Return the mean negative log-probability over the response tokens of the whole batch."""
    weights = torch.linspace(0.5, 1.5, RESPONSE, device=output["logprobs"].device)
    total = -(output["logprobs"] * weights).sum() * context.dp_size / context.batch_num_tokens
    return total, {}


def engines(kit: Context) -> Iterator[tuple[str, BaseEngine]]:
    """Yield a fresh engine for each language backend of the plugin that the platform would choose."""
    kit.platform  # noqa: B018  (chosen before anything is looked up)
    backends = {entry.key[1] for entry in kit.entries("engine") if entry.key[0] == "language_model"}  # type: ignore[index]
    usable = [name for name in sorted(backends) if _is_ours(kit, name)]
    if not usable:
        raise CheckSkipped(f"on {kit.platform.device_name} the look-up chooses none of its engines")
    for backend in usable:
        yield backend, make(backend)


def _is_ours(kit: Context, backend: str) -> bool:
    entry = EngineRegistry.explain("language_model", backend).entry
    return entry is not None and entry.origin.plugin == kit.plugin


def make(backend: str) -> BaseEngine:
    """Return an initialised engine around the kit's policy, with the defaults of its own section."""
    from plugrl.models import register_model

    register_model(MODEL_TYPE, lambda cfg, dtype: TinyPolicy(tiny_lm()).to(dtype), category="language", force=True)
    sections = EngineRegistry.sections("language_model", backend)
    config = import_target(sections[0].schema)() if sections else {}
    engine = EngineRegistry.new(
        "language_model", backend, {"model_type": MODEL_TYPE, "precision": "fp32"}, config, OPTIM, None
    )
    engine.initialize()
    return engine


def weights(engine: BaseEngine) -> dict[str, torch.Tensor]:
    """Return the engine's full weights on the host, by published name."""
    return {name: tensor.detach().to(HOST, copy=True) for name, tensor in engine.get_per_tensor_param()[0]}


def train(engine: BaseEngine, steps: int, **options: Any) -> list[float]:
    """Do optimizer steps on the fixed batch and return the losses."""
    losses = []
    for _ in range(steps):
        with engine.train_mode():
            losses.append(engine.train_batch(rows(), loss, BatchOptions(**options)).loss)
    return [float("nan") if item is None else float(item) for item in losses]


@check("engine.initialize", gate=True)
def initialize(kit: Context) -> str:
    """The engine builds the policy on the platform's device and says how many ranks see different data."""
    found = []
    for backend, engine in engines(kit):
        expect(isinstance(engine.module, torch.nn.Module), f"{backend}: module is no torch module")
        expect_equal((engine.get_data_parallel_size(), engine.get_data_parallel_rank()), (1, 0),
                     f"{backend}: data-parallel size and rank on one rank")  # fmt: skip
        expect(engine.is_mp_src_rank_with_outputs(), f"{backend}: the only rank holds no outputs")
        found.append(backend)
    return ", ".join(found)


@check("engine.train_batch")
def train_batch(kit: Context) -> None:
    """A step lowers the loss in the long run, changes the weights, and tells loss, gradient norm and learning rate."""
    for backend, engine in engines(kit):
        before = weights(engine)
        with engine.train_mode():
            result = engine.train_batch(rows(), loss)
        expect({"grad_norm", "lr"} <= set(result.metrics), f"{backend}: metrics of a step", got=sorted(result.metrics),
               expected="grad_norm and lr among them")  # fmt: skip
        still = [name for name, value in weights(engine).items() if torch.equal(value, before[name])]
        expect(len(still) < len(before) / 2, f"{backend}: after a step these weights are the same", got=still)
        losses = train(engine, 8)
        expect(losses[-1] < losses[0], f"{backend}: the loss does not fall", got=losses)


@check("engine.infer_batch")
def infer_batch(kit: Context) -> None:
    """infer_batch returns the outputs of all rows in order, on the host, and changes neither weights nor gradients."""
    batch = rows()
    expected = TinyPolicy(tiny_lm()).default_forward(batch)["logprobs"].detach()
    for backend, engine in engines(kit):
        before = weights(engine)
        for size in (None, 3):
            with engine.eval_mode():
                found = engine.infer_batch(batch, options=BatchOptions(micro_batch_size=size)).outputs["logprobs"]
            expect_equal(found.device.type, HOST, f"{backend}: the device of outputs")
            expect(not found.requires_grad, f"{backend}: outputs carry gradients")
            expect(torch.allclose(found.float(), expected, atol=2e-4), f"{backend}: outputs in micro-batches of {size}",
                   got=(found - expected).abs().max().item(), expected="the policy's own within 2e-4")  # fmt: skip
        expect(all(torch.equal(value, before[name]) for name, value in weights(engine).items()),
               f"{backend}: infer_batch changes weights")  # fmt: skip


@check("engine.micro_batches", fix="Divide by the counts of the whole batch, which the LossContext holds.")
def micro_batches(kit: Context) -> None:
    """However a batch is cut into micro-batches, by rows or by tokens, the step is the same."""
    reference: dict[str, list[float]] = {}
    for options in ({}, {"micro_batch_size": 1}, {"micro_batch_size": 3}, {"max_tokens": 30}):
        for backend, engine in engines(kit):
            losses = train(engine, 3, **options)
            expected = reference.setdefault(backend, losses)
            expect(all(abs(a - b) < 1e-4 for a, b in zip(losses, expected, strict=True)),
                   f"{backend}: losses with {options}", got=losses, expected=expected)  # fmt: skip


@check("engine.offload")
def offload(kit: Context) -> None:
    """Parts that were moved to the host and back train on as if they had stayed."""
    for (backend, moved), (_, stayed) in zip(engines(kit), engines(kit), strict=True):
        train(moved, 2)
        train(stayed, 2)
        before = weights(moved)
        moved.to(HOST)
        moved.to(kit.platform.device_name)
        expect(all(torch.equal(value, before[name]) for name, value in weights(moved).items()),
               f"{backend}: weights differ after a journey to the host")  # fmt: skip
        expect_equal(train(moved, 2), train(stayed, 2), f"{backend}: losses after a journey to the host")


@check("engine.export")
def export(kit: Context) -> None:
    """The stream of weights holds every tensor of the policy once, whole, under its published name."""
    reference = TinyPolicy(tiny_lm())
    expected = {str(reference.published_name(name)): value for name, value in reference.state_dict().items()}
    for backend, engine in engines(kit):
        names = [name for name, _ in engine.get_per_tensor_param()[0]]
        expect_equal(sorted(names), sorted(expected), f"{backend}: the published names")
        for name, value in weights(engine).items():
            expect(torch.equal(value.float(), expected[name]), f"{backend}: {name} is not what was built")


@check("engine.resume_exact", fix="Optimizer state and schedule belong into the checkpoint.")
def resume_exact(kit: Context) -> None:
    """An engine that loads a checkpoint trains on exactly as the one that wrote it."""
    for number, (backend, engine) in enumerate(engines(kit)):
        folder = kit.folder / f"checkpoint-{number}"
        folder.mkdir()
        train(engine, 3)
        engine.save_checkpoint(str(folder), global_step=3)
        expected = train(engine, 3)
        other = make(backend)
        other.load_checkpoint(str(folder))
        expect_equal(train(other, 3), expected, f"{backend}: losses after loading a checkpoint")
