"""L1, random numbers: seeds, states and generators, and that one device's draws move nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from plugrl.testing.kit.checks import check, expect, expect_equal
from plugrl.testing.kit.context import HOST, Context
from plugrl.testing.kit.l1_device import current_device

SIZE = 64
Draw = Callable[[torch.device], torch.Tensor]

DRAWS: Mapping[str, Draw] = {
    "randn": lambda device: torch.randn(SIZE, device=device),
    "rand": lambda device: torch.rand(SIZE, device=device),
    "randint": lambda device: torch.randint(0, 1 << 30, (SIZE,), device=device),
    "randperm": lambda device: torch.randperm(SIZE, device=device),
    "bernoulli": lambda device: torch.full((SIZE,), 0.5, device=device).bernoulli(),
    "exponential_": lambda device: torch.empty(SIZE, device=device).exponential_(),
    "normal with tensors": lambda device: torch.normal(
        torch.zeros(SIZE, device=device), torch.ones(SIZE, device=device)
    ),
    "multinomial": lambda device: torch.full((4, SIZE), 1.0, device=device).multinomial(16),
    "dropout": lambda device: F.dropout(torch.ones(SIZE, device=device), 0.5, training=True),
}
"""What sampling, initialisation and dropout draw with."""


def _draw_all(device: torch.device) -> dict[str, torch.Tensor]:
    return {name: draw(device).to(HOST) for name, draw in DRAWS.items()}


@check("L1.rng.seed_reproduces", capability="platform.rng", fix="Random kernels must use the device's generator.")
def seed_reproduces(kit: Context) -> None:
    """manual_seed gives every kind of draw again, another seed gives others, and so does drawing on."""
    device = kit.device(kit.platform.current_device())
    for name, draw in DRAWS.items():
        kit.platform.manual_seed(7)
        first, more = draw(device).to(HOST), draw(device).to(HOST)
        kit.platform.manual_seed(7)
        again = draw(device).to(HOST)
        kit.platform.manual_seed(8)
        other = draw(device).to(HOST)
        expect(torch.equal(first, again), f"{name} differs after the same seed", got=again[:4], expected=first[:4])
        expect(not torch.equal(first, more), f"{name} gives the same numbers twice without a new seed")
        expect(not torch.equal(first, other), f"{name} gives the same numbers after another seed")


@check("L1.rng.seed_all", capability="platform.rng", fix="manual_seed_all must reach every device.")
def seed_all(kit: Context) -> None:
    """manual_seed_all seeds every device, as does torch.manual_seed."""
    for seed in (kit.platform.manual_seed_all, torch.manual_seed):
        for index in range(kit.platform.device_count()):
            seed(21)
            first = torch.randn(SIZE, device=kit.device(index)).to(HOST)
            seed(21)
            again = torch.randn(SIZE, device=kit.device(index)).to(HOST)
            expect(torch.equal(first, again), f"device {index} is not seeded by {getattr(seed, '__name__', seed)}")


@check("L1.rng.distribution", capability="platform.rng")
def distribution(kit: Context) -> None:
    """Draws follow their distribution: mean and deviation of normal, uniform and Bernoulli numbers."""
    kit.platform.manual_seed(3)
    device, size = kit.device(kit.platform.current_device()), 40_000
    for name, sample, mean, deviation in (
        ("randn", torch.randn(size, device=device), 0.0, 1.0),
        ("rand", torch.rand(size, device=device), 0.5, 12**-0.5),
        ("bernoulli", torch.full((size,), 0.3, device=device).bernoulli(), 0.3, 0.21**0.5),
    ):
        host = sample.to(HOST)
        expect(abs(host.mean().item() - mean) < 0.03, f"the mean of {name}", got=host.mean().item(), expected=mean)
        expect(abs(host.std().item() - deviation) < 0.03, f"the deviation of {name}", got=host.std().item(),
               expected=deviation)  # fmt: skip


@check("L1.rng.state_round_trip", capability="platform.rng.state", fix="set_rng_state must restore seed and offset.")
def state_round_trip(kit: Context) -> None:
    """A restored state gives every kind of draw again; the state is a byte tensor on the host and moves with draws."""
    device = kit.device(kit.platform.current_device())
    kit.platform.manual_seed(5)
    torch.randn(3, device=device)
    state = kit.platform.rng_state()
    expect(isinstance(state, torch.Tensor) and state.dtype == torch.uint8 and state.device.type == HOST,
           "rng_state() is no byte tensor on the host", got=type(state).__name__)  # fmt: skip
    kept = state.clone()
    first = _draw_all(device)
    expect(not torch.equal(kit.platform.rng_state(), kept), "the state is the same after draws")
    kit.platform.set_rng_state(kept)
    expect(torch.equal(kit.platform.rng_state(), kept), "rng_state() differs from what was just set")
    again = _draw_all(device)
    differing = [name for name in first if not torch.equal(first[name], again[name])]
    expect(not differing, f"after set_rng_state these draws differ: {', '.join(differing)}")


@check("L1.rng.generator", capability="platform.rng.state", fix="Register newGenerator, and use generator= in kernels.")
def generator(kit: Context) -> None:
    """A generator of its own is respected by generator= and leaves the device's default generator alone."""
    device = kit.device(kit.platform.current_device())
    own = torch.Generator(device=device)
    before = kit.platform.rng_state().clone()
    first = torch.randn(SIZE, device=device, generator=own.manual_seed(9)).to(HOST)
    again = torch.randn(SIZE, device=device, generator=own.manual_seed(9)).to(HOST)
    more = torch.randn(SIZE, device=device, generator=own).to(HOST)
    expect(torch.equal(first, again), "generator= with the same seed gives other numbers")
    expect(not torch.equal(again, more), "generator= does not move")
    expect(torch.equal(kit.platform.rng_state(), before), "generator= moves the default generator of the device")


@check("L1.rng.host_untouched", capability="platform.rng.isolation",
       fix="A kernel that falls back to the host draws there: give it a generator of the device.")  # fmt: skip
def host_untouched(kit: Context) -> None:
    """Draws on the device leave the host's generator where it is, and the host's seed does not decide them."""
    device = kit.device(kit.platform.current_device())
    for name, draw in DRAWS.items():
        before = torch.get_rng_state()
        draw(device)
        expect(torch.equal(torch.get_rng_state(), before), f"{name} on the device moves the host's generator")


@check("L1.rng.devices_apart", capability="platform.rng.isolation", devices=2, fix="Keep a generator for each device.")
def devices_apart(kit: Context) -> None:
    """Seeding and drawing on one device leave the generator of another where it is."""
    kit.platform.manual_seed_all(1)
    with current_device(kit, 1):
        before = kit.platform.rng_state().clone()
    with current_device(kit, 0):
        kit.platform.manual_seed(2)
        for draw in DRAWS.values():
            draw(kit.device(0))
    with current_device(kit, 1):
        expect(torch.equal(kit.platform.rng_state(), before), "work on device 0 moved the generator of device 1")


@check("L1.rng.seed_is_of_the_current_device", capability="platform.rng.isolation", devices=2)
def seed_of_current(kit: Context) -> None:
    """manual_seed seeds the current device, whichever it is."""
    for index in range(2):
        with current_device(kit, index):
            kit.platform.manual_seed(11)
            first = torch.randn(SIZE, device=kit.device(index)).to(HOST)
            kit.platform.manual_seed(11)
            expect_equal(torch.equal(first, torch.randn(SIZE, device=kit.device(index)).to(HOST)), True,
                         f"whether manual_seed on device {index} reproduces its draws")  # fmt: skip
