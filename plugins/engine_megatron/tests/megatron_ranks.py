"""What a rank does in the tests: train a small Hugging Face model under a backend and a layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry
from plugrl.engines.state import StateParts, add_checksums, checksums
from plugrl.metric import Metric

PROMPT, RESPONSE, VOCABULARY = 5, 7, 15
# A large eps, since AdamW would blow up the rounding errors of gradients that are zero by symmetry (key biases).
OPTIM = {"lr": 1e-2, "clip_grad": 0.5, "eps": 1e-3}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.2,
         "tie_word_embeddings": False}  # fmt: skip
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True,
          "mlp_only_layers": [0]}  # fmt: skip


def model(family: str, *, values: bool = False, **more: Any) -> dict[str, Any]:
    """The section ``model:`` of a small model of a family."""
    config = {"model_type": family, **SMALL, **(SPARSE if family == "qwen3_moe" else {}), **more}
    return {
        "model_type": "causal_lm_value" if values else "causal_lm",
        "config": config,
        "tokenizer": {"type": "characters", "alphabet": "0123456789+-=* "},
        "precision": "fp32",
        "seed": 0,
    }


def rows(count: int = 8, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch with prompts and responses of different lengths, and weights of its tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (count, PROMPT + RESPONSE), generator=generator)
    attention = torch.ones_like(ids)
    for row in range(count):
        attention[row, : row % 3] = 0
        attention[row, PROMPT + RESPONSE - (row * 2) % 4 :] = 0
    weights = torch.rand(count, RESPONSE, generator=generator) + 0.5  # so that no loss is near zero
    return {
        "input_ids": ids, "attention_mask": attention, "response_mask": attention[:, PROMPT:].clone(),
        "weights": weights,
    }  # fmt: skip


def share(batch: dict[str, torch.Tensor], engine: Any) -> dict[str, torch.Tensor]:
    """The rows that an engine's rank sees."""
    size = len(batch["input_ids"]) // engine.get_data_parallel_size()
    first = engine.get_data_parallel_rank() * size
    return {name: tensor[first : first + size] for name, tensor in batch.items()}


def loss(output: Any, batch: Any, context: Any) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Weighed log-probabilities and entropy, or weighed values, as a mean over the tokens of the whole batch."""
    mask = batch["response_mask"].float()
    if "values" in output:
        terms = (output["values"] - batch["weights"]).square() * mask
    else:
        terms = (-output["logprobs"] * batch["weights"] - 0.1 * output["entropy"]) * mask
    return terms.sum() * (context.dp_size / context.batch_num_tokens), {"tokens": Metric(float(mask.sum()), "sum")}


def make_engine(backend: str, section: dict[str, Any], config: dict[str, Any], optim: Any = OPTIM, **more: Any) -> Any:
    """An initialised engine."""
    kind = "value_model" if section["model_type"].endswith("value") else "language_model"
    found = EngineRegistry.get_engine_cls(kind, backend)(section, config, optim, more.get("checkpoint"))
    found.initialize()
    return found


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """Whole weights by name. Collective."""
    return {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()[0]}


def steps(engine: Any, seeds: range, micro: int | None = None) -> tuple[list[float], list[float]]:
    """Train one step for each seed; returns losses of this rank's rows and norms."""
    options = BatchOptions(micro_batch_size=micro, forward_kwargs={"compute_entropy": True, "temperature": 0.7})
    losses, norms = [], []
    for seed in seeds:
        with engine.train_mode():
            result = engine.train_batch(share(rows(seed=seed), engine), loss, options)
        losses.append(result.loss)
        norms.append(float(result.metrics["grad_norm"]))
    return losses, norms


def train(
    rank: int, world: int, backend: str, section: dict[str, Any], config: dict[str, Any], micro: int | None = None
) -> dict[str, Any]:
    """Infer, then train three steps."""
    engine = make_engine(backend, section, config)
    first = weights(engine)
    options = BatchOptions(micro_batch_size=micro, forward_kwargs={"compute_entropy": True, "temperature": 0.7})
    with engine.eval_mode():
        outputs = engine.infer_batch(share(rows(), engine), None, options).outputs
    losses, norms = steps(engine, range(3), micro)
    return {
        "first": first, "outputs": outputs, "losses": losses, "norms": norms, "weights": weights(engine),
        "answers": engine.is_mp_src_rank_with_outputs(), "part": engine.get_data_parallel_rank(),
    }  # fmt: skip


def train_and_save(
    rank: int, world: int, backend: str, section: dict[str, Any], config: dict[str, Any], folder: str
) -> dict[str, Any]:
    """Train two steps, save, and go on for two more."""
    engine = make_engine(backend, section, config)
    steps(engine, range(2))
    if rank == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
    engine.save_checkpoint(folder, global_step=2)
    losses, norms = steps(engine, range(2, 4))
    return {"losses": losses, "norms": norms, "weights": weights(engine),
            "answers": engine.is_mp_src_rank_with_outputs()}  # fmt: skip


def load_and_train(
    rank: int, world: int, backend: str, section: dict[str, Any], config: dict[str, Any], folder: str, to: str = ""
) -> dict[str, Any]:
    """Load what another run saved, save it again where it is asked for, and train two steps more."""
    engine = make_engine(backend, {**section, "seed": 1}, config)
    engine.load_checkpoint(folder)
    if to:
        if rank == 0:
            Path(to).mkdir(parents=True, exist_ok=True)
        engine.save_checkpoint(to, global_step=2)
    losses, norms = steps(engine, range(2, 4))
    return {"losses": losses, "norms": norms, "weights": weights(engine), "updates": engine.updates,
            "answers": engine.is_mp_src_rank_with_outputs()}  # fmt: skip


def give_state(rank: int, world: int, backend: str, section: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Train two steps, export the state, and go on for two more."""
    engine = make_engine(backend, section, config)
    steps(engine, range(2))
    state = engine.export_state()
    pieces = [(piece.block, piece.spec, piece.tensor.clone()) for piece in state.pieces]
    sums = checksums(piece for piece in state.pieces if not piece.block.key.startswith("random/"))
    losses, norms = steps(engine, range(2, 4))
    return {"pieces": pieces, "values": dict(state.values), "sums": sums, "losses": losses, "norms": norms,
            "weights": weights(engine), "answers": engine.is_mp_src_rank_with_outputs()}  # fmt: skip


def take_state(
    rank: int, world: int, backend: str, section: dict[str, Any], config: dict[str, Any], pieces: Any, values: Any
) -> dict[str, Any]:
    """Take over a state, export it again, and train two steps more."""
    engine = make_engine(backend, {**section, "seed": 1}, config)
    specs = {block.key: spec for block, spec, _ in pieces}
    parts = StateParts(specs, engine.wanted_state(specs))
    for block, _, tensor in pieces:
        parts.fill(block, tensor)
    engine.import_state(parts, values, 0)
    sums = checksums(
        piece for piece in engine.export_state().pieces if not piece.block.key.startswith("random/")
    )
    losses, norms = steps(engine, range(2, 4))
    return {"sums": sums, "losses": losses, "norms": norms, "weights": weights(engine),
            "answers": engine.is_mp_src_rank_with_outputs()}  # fmt: skip


def whole_sums(runs: list[dict[str, Any]]) -> dict[str, int]:
    """Checksums of the whole state that some ranks exported."""
    return add_checksums(run["sums"] for run in runs)


def refused(rank: int, world: int, section: dict[str, Any], config: dict[str, Any], optim: Any = OPTIM) -> str:
    """The text of the ConfigError that initialisation ends with; empty when there is none."""
    from plugrl.errors import ConfigError

    try:
        make_engine("megatron", section, config, optim)
    except ConfigError as error:
        return str(error)
    return ""
