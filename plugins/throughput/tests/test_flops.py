"""Floating-point operations against formulas, and a training that does not change by counting."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from torchbus import session

from torchbus_testing.state import assert_torch_unchanged, torch_state

LOOPS = runpy.run_path(str(Path(__file__).parent / "scripts" / "loops.py"))
loader, make, loss_of, WIDTH = (LOOPS[name] for name in ("loader", "make", "loss_of", "WIDTH"))
ROWS = 4


def flops_per_sample(model, x, steps=5, **options):
    """The operations per sample that a session finds in a loop over ROWS rows like ``x``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(ROWS * steps, *x)
    with session(strategy=None, throughput_every=1, **{"flops": True} | options) as s:
        for (batch,) in DataLoader(TensorDataset(rows), batch_size=ROWS):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        last = s.throughput()
    return last.flops_per_sec * last.seconds / last.samples


def test_a_linear_layer():
    # forward, and the gradient of the weight; the input needs none
    assert flops_per_sample(torch.nn.Linear(6, 5), [6]) == pytest.approx(2 * 2 * 6 * 5)


def test_two_layers():
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    assert flops_per_sample(model, [6]) == pytest.approx(2 * 2 * 6 * 5 + 3 * 2 * 5 * 3)


def test_frozen_parameters_take_no_backward():
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    model[0].requires_grad_(False)
    assert flops_per_sample(model, [6]) == pytest.approx(2 * 6 * 5 + 2 * 2 * 5 * 3)


def test_a_convolution():
    model = torch.nn.Conv2d(3, 7, kernel_size=3, padding=1)
    assert flops_per_sample(model, [3, 8, 8]) == pytest.approx(2 * 2 * (3 * 7 * 3 * 3) * 8 * 8)


class Block(torch.nn.Module):
    """A transformer's block without norms: attention by torch's fused kernel, and an MLP."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def test_a_transformer():
    width, length, layers = 16, 10, 2
    model = torch.nn.Sequential(*[Block(width) for _ in range(layers)])
    weights = (3 + 1 + 4 + 4) * width * width  # of one layer
    dense = 2 * weights * length
    # scores and values; in backward the scores again, and two products for each of the two
    attention = 2 * (2 * length * length * width)
    # 3 times dense, but for the gradient of the first layer's input
    expected = layers * 3 * dense - 2 * 3 * width * width * length
    expected += layers * (attention + 2.5 * attention)
    assert flops_per_sample(model, [length, width]) == pytest.approx(expected)


def test_a_window_of_accumulation_counts_by_sample():
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session(strategy=None, throughput_every=1, flops=True, peak_flops=1e3) as s:
        for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(22, 6)), batch_size=2)):
            model(x).square().mean().backward()
            if number % 3 == 2:
                optimizer.step()
        last = s.throughput()
    assert last.flops_per_sec * last.seconds == pytest.approx(6 * 2 * 2 * 6 * 5)
    assert last.mfu == pytest.approx(last.flops_per_sec / 1e3)


def test_a_number_of_flops_is_taken_as_it_is():
    assert flops_per_sample(torch.nn.Linear(6, 5), [6], flops=1e6) == pytest.approx(1e6)


class Noisy(torch.nn.Module):
    """Uses all that a count could disturb: random numbers, buffers, checkpointing, attention."""

    def __init__(self):
        super().__init__()
        self.inner = Block()
        self.norm = torch.nn.BatchNorm1d(16)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return self.drop(self.norm(x.mean(1)))


def trained(**options):
    torch.manual_seed(0)
    model = Noisy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(30, 5, 16))
    losses = []

    def loop():
        for _ in range(2):
            for (x,) in DataLoader(data, batch_size=4, shuffle=True, num_workers=1):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    if options:
        with session(strategy=None, **options):
            loop()
    else:
        loop()
    grads = [one.grad for one in model.parameters()]
    return losses, [*model.state_dict().values(), *grads], torch.get_rng_state()


def test_counting_changes_no_bit():
    plain = trained()
    before = torch_state()
    counted = trained(flops=True, peak_flops=1e12, model_summary=True, throughput_every=2, tokens=0)
    assert_torch_unchanged(before)
    assert counted[0] == plain[0]
    assert torch.equal(counted[2], plain[2])
    for one, other in zip(counted[1], plain[1], strict=True):
        assert_close(one, other, rtol=0, atol=0)


@torch.library.custom_op("throughput_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_autograd(lambda ctx, grad: grad * 2, setup_context=lambda ctx, inputs, output: None)


class Custom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 5)

    def forward(self, x):
        return twice(self.inner(x))


def test_an_operation_without_a_formula_counts_as_0_and_is_named():
    with pytest.warns(UserWarning) as caught:
        assert flops_per_sample(Custom(), [6]) == pytest.approx(2 * 2 * 6 * 5)
    assert [str(one.message) for one in caught] == [
        "flops=True: no formula for throughput_test::twice (1x): counted as 0 FLOPs. Give one with"
        " torch.utils.flop_counter.register_flop_formula before the session"
    ]


def test_compiled_code_is_not_counted():
    model = torch.nn.Linear(6, 5)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        pytest.warns(UserWarning, match="the loop runs compiled code") as caught,
        session(strategy=None, throughput_every=1, flops=True) as s,
    ):
        for (x,) in DataLoader(TensorDataset(torch.randn(20, 6)), batch_size=4):
            optimizer.zero_grad()
            compiled(x).square().mean().backward()
            optimizer.step()
        last = s.throughput()
    assert [one.category for one in caught].count(UserWarning) == 1
    assert (last.samples, last.flops_per_sec) == (4, None)
    # what was compiled before a session says nothing about its loop
    assert flops_per_sample(torch.nn.Linear(6, 5), [6]) == pytest.approx(2 * 2 * 6 * 5)
    torch._dynamo.reset()


def test_a_mode_of_the_loop_may_end_after_the_step():
    """The loop's own mode is still on when the step to be counted begins, and when it ends."""
    model, optimizer = make()
    with session(strategy=None, throughput_every=1, flops=True) as s:
        for x, y in loader():
            with FlopCounterMode(display=False) as own:
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            assert own.get_total_flops() == len(x) * (2 * 2 * WIDTH * 8 + 3 * 2 * 8)
        last = s.throughput()
        assert _get_current_dispatch_mode() is None
    counted = last.flops_per_sec * last.seconds / last.samples
    assert counted == pytest.approx(2 * 2 * WIDTH * 8 + 3 * 2 * 8)
