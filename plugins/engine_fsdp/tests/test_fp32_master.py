"""AdamW with fp32 masters: torch's bits on fp32, updates that bf16 loses, what it refuses and what it restores."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from plugrl_engine_fsdp.fp32_master import FP32MasterAdamW, build_adamw

SHAPES = ((), (7,), (64, 33), (3, 5, 129), (700, 900))


def _parameters(dtype: torch.dtype = torch.float32, shapes=SHAPES) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def _give_gradients(parameters: list[torch.nn.Parameter], step: int, dtype: torch.dtype | None = None) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for index, parameter in enumerate(parameters):
        value = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None
        # One parameter is used every other step: its count of steps differs from the others'.
        if index != 1 or step % 2:
            parameter.grad_dtype = dtype or parameter.dtype
            parameter.grad = value.to(dtype or parameter.dtype)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_on_fp32_it_is_torchs_adamw_bit_for_bit_groups_and_changing_rates_included(decay: float) -> None:
    options = {"lr": 3e-3, "betas": (0.8, 0.97), "eps": 1e-6, "weight_decay": decay}
    ours, theirs = _parameters(), _parameters()
    mine = FP32MasterAdamW([{"params": ours[:2]}, {"params": ours[2:], "lr": 1e-2, "weight_decay": 0.3}], **options)
    native = torch.optim.AdamW(
        [{"params": theirs[:2]}, {"params": theirs[2:], "lr": 1e-2, "weight_decay": 0.3}], foreach=False, **options
    )
    for step in range(25):
        for optimizer, parameters in ((mine, ours), (native, theirs)):
            _give_gradients(parameters, step)
            optimizer.param_groups[0]["lr"] = 3e-3 / (1 + step)
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert mine.state[a].keys() == native.state[b].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(mine.state[a][slot], native.state[b][slot]) for slot in mine.state[a])


def test_a_thousand_updates_that_bf16_loses_are_kept() -> None:
    options = {"lr": 1e-5, "weight_decay": 0.0}
    # From 1 downwards a bf16 number has neighbours 0.004 away: a step of 1e-5 changes nothing.
    low, plain, full = (torch.nn.Parameter(torch.ones(64, dtype=d)) for d in (torch.bfloat16, torch.bfloat16, None))
    optimizers = [FP32MasterAdamW([low], **options), torch.optim.AdamW([plain], **options)]
    optimizers.append(torch.optim.AdamW([full], **options))
    for _ in range(1000):
        for parameter in (low, plain, full):
            parameter.grad = torch.ones_like(parameter)
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(plain, torch.ones_like(plain))
    master = optimizers[0].state[low]["fp32_master_param"]
    assert master.dtype == torch.float32 and torch.equal(master, full)
    assert torch.equal(low, full.bfloat16()) and low.dtype == torch.bfloat16
    assert full[0].item() == pytest.approx(0.99, abs=1e-4)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16])
def test_gradients_of_a_smaller_type_update_fp32_parameters_in_fp32(kept: torch.dtype) -> None:
    ours, theirs = _parameters(), _parameters()
    mine, native = FP32MasterAdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2, foreach=False)
    for step in range(5):
        _give_gradients(ours, step, kept)
        _give_gradients(theirs, step)
        for parameter in theirs:
            parameter.grad = None if parameter.grad is None else parameter.grad.to(kept).float()
        mine.step()
        native.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all("fp32_master_param" not in state for state in mine.state.values())


def test_a_factor_on_gradients_is_applied_in_fp32_and_once() -> None:
    scaled, plain = _parameters(shapes=SHAPES[1:3]), _parameters(shapes=SHAPES[1:3])
    optimizers = [FP32MasterAdamW(parameters, eps=1e-12) for parameters in (scaled, plain)]
    for step in range(2):
        for parameters, size in ((scaled, 1.0), (plain, 2.0**-20)):
            _give_gradients(parameters, step, torch.float16)
            for parameter in parameters:
                if parameter.grad is not None and parameters is plain:
                    gradient = parameter.grad.float() * size
                    parameter.grad, parameter.grad_dtype = None, torch.float32
                    parameter.grad = gradient
        optimizers[0].gradient_factor = 2.0**-20
        for optimizer in optimizers:
            optimizer.step()
        assert optimizers[0].gradient_factor == 1.0
    assert all(torch.equal(a, b) for a, b in zip(scaled, plain, strict=True))
    assert copy.deepcopy(optimizers[0]).gradient_factor == 1.0


def test_state_is_made_for_parameters_with_a_gradient_alone() -> None:
    parameters = _parameters(torch.bfloat16)
    optimizer = FP32MasterAdamW(parameters)
    _give_gradients(parameters, step=0)
    before = parameters[1].detach().clone()
    optimizer.step()
    assert parameters[1] not in optimizer.state and torch.equal(parameters[1], before)
    state = optimizer.state[parameters[2]]
    assert set(state) == {"step", "exp_avg", "exp_avg_sq", "fp32_master_param"}
    assert state["step"].shape == () and state["step"].dtype == torch.float32 and state["step"].item() == 1
    assert {state[slot].dtype for slot in state} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_training_goes_on_to_the_same_bits(dtype: torch.dtype) -> None:
    parameters = _parameters(dtype)
    optimizer = FP32MasterAdamW(parameters, lr=1e-2)
    for step in range(4):
        _give_gradients(parameters, step)
        optimizer.step()
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    other = FP32MasterAdamW(copies, lr=5.0)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 1e-2
    for step in range(4, 8):
        for one, its in ((optimizer, parameters), (other, copies)):
            _give_gradients(its, step)
            one.step()
    assert all(torch.equal(a, b) for a, b in zip(parameters, copies, strict=True))
    for a, b in zip(parameters, copies, strict=True):
        assert all(torch.equal(optimizer.state[a][slot], other.state[b][slot]) for slot in optimizer.state[a])


def test_the_schedules_of_torch_drive_it() -> None:
    parameters = _parameters()
    optimizer = FP32MasterAdamW(parameters, lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_closure_runs_with_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = FP32MasterAdamW([parameter], lr=0.1)

    def closure() -> float:
        loss = parameter.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0 and parameter.max() < 1.0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"lr": float("nan")}, "Invalid learning rate: nan"),
        ({"eps": -1e-8}, "Invalid epsilon value: -1e-08"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ({"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(option: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FP32MasterAdamW(_parameters(), **option)
    with pytest.raises(ValueError, match=message):
        FP32MasterAdamW([{"params": _parameters(), **option}])


def test_only_floating_parameters_and_dense_gradients_are_taken() -> None:
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match="floating"):
            FP32MasterAdamW([torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)])
    table = torch.nn.Embedding(5, 3, sparse=True)
    dense = torch.nn.Parameter(torch.ones(2))
    dense.grad = torch.ones(2)
    table(torch.tensor([1])).sum().backward()
    optimizer = FP32MasterAdamW([dense, table.weight])
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert torch.equal(dense, torch.ones(2)) and not optimizer.state


@pytest.mark.parametrize(
    "shapes", [SHAPES[:-1], (*SHAPES, (2,)), (*SHAPES[:-1], (3, 3))], ids=["fewer", "more", "shape"]
)
def test_the_state_of_other_parameters_is_refused_and_ours_kept(shapes: tuple) -> None:
    parameters, others = _parameters(), _parameters(shapes=shapes)
    optimizer, other = FP32MasterAdamW(parameters), FP32MasterAdamW(others, lr=7.0)
    for one, its in ((optimizer, parameters), (other, others)):
        _give_gradients(its, step=1)
        one.step()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="different parameter topology"):
        optimizer.load_state_dict(other.state_dict())
    _same_state(optimizer.state_dict(), before)


def test_the_state_of_a_bf16_parameter_needs_its_master() -> None:
    parameters, plain = _parameters(torch.bfloat16), _parameters(torch.bfloat16)
    optimizer, native = FP32MasterAdamW(parameters), torch.optim.AdamW(plain, lr=7.0)
    for one, its in ((optimizer, parameters), (native, plain)):
        _give_gradients(its, step=1)
        one.step()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="without fp32_master_param"):
        optimizer.load_state_dict(native.state_dict())
    _same_state(optimizer.state_dict(), before)


def _same_state(state: dict, before: dict) -> None:
    assert state["param_groups"] == before["param_groups"] and state["state"].keys() == before["state"].keys()
    for key, slots in before["state"].items():
        assert all(torch.equal(state["state"][key][slot], value) for slot, value in slots.items())


def test_build_adamw_chooses() -> None:
    groups = [{"params": _parameters()[:2], "lr": 0.5}]
    assert isinstance(build_adamw(groups, eps=1e-7, weight_decay=0.2, use_fp32_master_params=True), FP32MasterAdamW)
    native = build_adamw([{"params": _parameters()}], eps=1e-7, weight_decay=0.2)
    assert type(native) is torch.optim.AdamW
    assert native.defaults["eps"] == 1e-7 and native.defaults["weight_decay"] == 0.2


def sharded_against_whole(rank: int, world: int, dtype: torch.dtype) -> None:
    mesh = init_device_mesh("cpu", (world,))
    shapes = ((1,), (7, 3), (64, 33))  # with two ranks one of them holds nothing of the first
    whole = _parameters(dtype, shapes)
    sharded = [torch.nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in whole]
    reference, optimizer = FP32MasterAdamW(whole, lr=1e-2), FP32MasterAdamW(sharded, lr=1e-2)
    for step in range(1, 6):
        _give_gradients(whole, step)
        for parameter, full in zip(sharded, whole, strict=True):
            parameter.grad = None if full.grad is None else distribute_tensor(full.grad, mesh, [Shard(0)])
        reference.step()
        optimizer.step()
        if step == 3:  # a state of whole tensors is cut along the parameters
            optimizer = FP32MasterAdamW(sharded)
            optimizer.load_state_dict(reference.state_dict())
    for parameter, full in zip(sharded, whole, strict=True):
        assert torch.equal(parameter.full_tensor(), full)
        for slot, value in optimizer.state[parameter].items():
            assert slot == "step" or isinstance(value, DTensor)
            gathered = value.full_tensor() if isinstance(value, DTensor) else value
            assert torch.equal(gathered, reference.state[full][slot])
    dist.barrier()


def test_sharded_parameters_get_the_bits_of_whole_ones(ranks) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ranks.run(sharded_against_whole, dtype, world=2)
