"""Mixed and reduced precision against autocast and GradScaler written by hand, bit for bit, on one rank."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torchbus import session
from torchbus.errors import UsageError

from torchbus_amp import Precision

MIXED = [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16)]
Make = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def batches() -> list[Tensor]:
    return list(torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(1)))


def values(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def unchanged(make: Make, overflow: int = -1, closures: bool = False, model: Any = None) -> tuple[Tensor, int]:
    """A loop that knows nothing of precision: parameters and the number of the scheduler's steps."""
    model = model or net()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    device = next(model.parameters()).device
    for index, x in enumerate(batch.to(device) for batch in batches()):

        def closure(x: Tensor = x, index: int = index) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean() * (1e38 if index == overflow else 1.0)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.5)
            return loss

        if closures:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        scheduler.step()
    return values(model), scheduler.last_epoch


def by_hand(make: Make, dtype: torch.dtype, overflow: int = -1, device: str = "cpu") -> tuple[Tensor, int]:
    model = net().to(device)
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    for index, x in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            output = model(x.to(device))
        loss = output.float().square().mean() * (1e38 if index == overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
    return values(model), scheduler.last_epoch


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_equals_autocast_and_gradscaler_by_hand(precision: str, dtype: torch.dtype, make: Make, closures: bool) -> None:
    with session(precision=precision):
        found = unchanged(make, closures=closures)
    expected = by_hand(make, dtype)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize("closures", [False, True])
def test_an_overflow_skips_optimizer_and_scheduler(closures: bool) -> None:
    with session(precision="16-mixed"):
        found = unchanged(sgd, overflow=3, closures=closures)
    expected = by_hand(sgd, torch.float16, overflow=3)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1] < 8


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_a_compiled_model(precision: str, dtype: torch.dtype) -> None:
    for early in (False, True):
        compiled = torch.compile(net(), backend="eager") if early else None
        with session(precision=precision):
            found = unchanged(sgd, model=compiled or torch.compile(net(), backend="eager"))
        assert torch.equal(found[0], by_hand(sgd, dtype)[0])


def test_the_loop_sees_true_losses_and_true_gradients() -> None:
    with session(precision="16-mixed"):
        model = net()
        _optimizer = sgd(model.parameters())
        loss = model(batches()[0]).square().mean()
        value = loss.item()
        loss.backward()
    plain = net()
    plain(batches()[0]).square().mean().backward()
    assert loss.item() == value
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=0.05, atol=1e-3)


def test_two_losses_into_the_same_gradients() -> None:
    def run(scale: float, cast: bool) -> Tensor:
        model = net()
        _optimizer = sgd(model.parameters())
        for x in batches()[:2]:
            with torch.autocast("cpu", torch.float16) if cast else contextlib.nullcontext():
                output = model(x)
            (output.float().square().mean() * scale).backward()
        return torch.cat([parameter.grad.reshape(-1) / scale for parameter in model.parameters()])

    with session(precision="16-mixed"):
        found = run(1.0, False)
    assert torch.equal(found, run(65536.0, True))


def test_each_optimizer_has_its_own_scale() -> None:
    with session(precision="16-mixed") as s:
        one, two = net(), net()
        first, second = sgd(one.parameters()), sgd(two.parameters())
        for model, optimizer, factor in ((one, first, 1e38), (two, second, 1.0)):
            optimizer.zero_grad()
            (model(batches()[0]).square().mean() * factor).backward()
            optimizer.step()
        assert torch.equal(values(one), values(net()))
        assert not torch.equal(values(two), values(net()))
        text = " ".join(s.explain().split())
        assert "loss scale 32768" in text
        assert "loss scale 65536" in text
        assert "forward under float16 autocast" in text


class Pair(NamedTuple):
    left: Tensor
    rest: dict[str, Any]


class Odd(nn.Module):
    """Returns a structure, and is used by another method than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Pair:
        hidden = self.inner(x)
        self.seen.append(hidden.dtype)
        return Pair(hidden, {"list": [hidden, "word"], "index": torch.arange(2)})

    def loss(self, x: Tensor) -> Tensor:
        return self.inner(x).sum()


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_structures_return_as_float32(with_optimizer: bool) -> None:
    forward = Odd.forward
    with session(precision="bf16-mixed"):
        model = Odd()
        if with_optimizer:
            sgd(model.parameters())
        for _ in range(2):
            output = model(batches()[0])
            assert type(output) is Pair
            assert output.left.dtype == output.rest["list"][0].dtype == torch.float32
            assert output.rest["index"].dtype == torch.int64
        assert model.seen == [torch.bfloat16] * 2
        assert type(pickle.loads(pickle.dumps(copy.deepcopy(model)))) is Odd
    assert Odd.forward is forward
    assert not torch.is_autocast_enabled("cpu")


def test_a_submodule_called_alone_runs_under_autocast() -> None:
    with session(precision="bf16-mixed"):
        model = Odd()
        optimizer = sgd(model.parameters())
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            expected = model.inner(batches()[0]).float().sum()
        loss = model.loss(batches()[0])
        loss.backward()
        optimizer.step()
    assert torch.equal(loss, expected)


def test_a_forward_that_raises_leaves_no_autocast() -> None:
    class Broken(Odd):
        def forward(self, x: Tensor) -> Pair:
            raise KeyError

    with session(precision="bf16-mixed"):
        model = Broken()
        for _ in range(2):
            with pytest.raises(KeyError):
                model(batches()[0])
            assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_a_loop_with_its_own_is_left_alone(precision: str, dtype: torch.dtype) -> None:
    expected = by_hand(sgd, dtype)
    with session(precision=precision) as s:
        found = by_hand(sgd, dtype)
        model = net()
        _optimizer = sgd(model.parameters())
        assert ("no loss scaling: the loop has a GradScaler of its own" in " ".join(s.explain().split())) == (dtype == torch.float16)
        with torch.autocast("cpu", dtype):
            assert model(batches()[0]).dtype == dtype
        assert "left alone: the loop has autocast of its own" in " ".join(s.explain().split())
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize(("precision", "dtype"), [("16-true", torch.float16), ("bf16-true", torch.bfloat16), ("64-true", torch.float64)])
def test_true_precision(precision: str, dtype: torch.dtype) -> None:
    def run(convert: bool) -> Tensor:
        model = net().to(dtype) if convert else net()
        optimizer = sgd(model.parameters())
        for x in batches():
            optimizer.zero_grad()
            output = model(x.to(dtype) if convert else x)
            output = output.float() if convert and dtype != torch.float64 else output
            assert output.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            output.square().mean().backward()
            optimizer.step()
        return values(model)

    with session(precision=precision):
        found = run(False)
    assert found.dtype == dtype
    assert torch.equal(found, run(True))


def test_the_scale_can_be_kept(tmp_path: Path) -> None:
    plugin = Precision("16-mixed")
    with session(plugin):
        model = net()
        optimizer = sgd(model.parameters())
        (model(batches()[0]).square().mean() * 1e38).backward()
        optimizer.step()
        torch.save(plugin.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for late in (False, True):
        again = Precision("16-mixed")
        with session(again):
            early = None if late else sgd(net().parameters())
            again.load_state_dict(state)
            _optimizer = early or sgd(net().parameters())
            assert again.state_dict()["scales"][0]["scale"] == 32768.0


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise KeyError


def test_gradients_of_tensors_in_no_optimizer_are_true_values() -> None:
    def run() -> list[Tensor]:
        model, other = net(), nn.Linear(1, 1)
        _optimizer = sgd(model.parameters())
        x = batches()[0].requires_grad_()
        with torch.no_grad():
            other.weight.fill_(0.5)
            other.bias.zero_()
        for _ in range(2):
            (other(model(x)).square().mean() / 8).backward()
        assert x.grad is not None and other.weight.grad is not None
        return [x.grad, other.weight.grad]

    with session(precision="16-mixed"):
        found = run()
    for one, expected in zip(found, run(), strict=True):
        assert torch.allclose(one, expected, rtol=0.02, atol=1e-4)


def test_a_backward_that_raises_leaves_true_gradients() -> None:
    with session(precision="16-mixed"):
        model = net()
        _optimizer = sgd(model.parameters())
        model(batches()[0]).square().mean().backward()
        before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        with pytest.raises(KeyError):
            Raises.apply(model(batches()[1])).sum().backward()
        assert all(torch.equal(one, parameter.grad) for one, parameter in zip(before, model.parameters(), strict=True) if parameter.grad is not None)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_model_that_is_found_too_late_to_be_converted(adopted: bool) -> None:
    with session(precision="bf16-true") as s:
        holder = {"teacher": net(), "student": net()}
        optimizer = sgd(holder["student"].parameters())
        if adopted:
            s.adopt(holder["teacher"])
        target = holder["teacher"](batches()[0]).detach()
        (holder["student"](batches()[0]) - target).square().mean().backward()
        with contextlib.nullcontext() if adopted else pytest.warns(UserWarning, match=r"Sequential is not converted.*s\.adopt\(model\)"):
            optimizer.step()
        assert next(holder["teacher"].parameters()).dtype == (torch.bfloat16 if adopted else torch.float32)
        optimizer.step()


@pytest.mark.parametrize(("options", "words"), [
    ({"precision": "fp8"}, "'32-true', '64-true', '16-mixed', 'bf16-mixed', '16-true', 'bf16-true'"),
    ({"precision": 16}, "precision=16 is unknown"),
    ({"precision": "16-mixed", "amp_backend": "apex"}, "no longer maintained"),
    ({"amp_backend": "other"}, "there is 'native'"),
])  # fmt: skip
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.LBFGS])
def test_optimizers_that_cannot_compute_in_float16(make: Any) -> None:
    with pytest.raises(UsageError, match=f"precision='16-true' with {make.__name__}"), session(precision="16-true"):
        make(net().parameters())


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_equals_the_loop_by_hand_on_a_gpu(precision: str, dtype: torch.dtype, make: Make) -> None:
    with session(precision=precision, devices=1):
        found = unchanged(make, model=net().cuda())
    assert torch.equal(found[0].cpu(), by_hand(make, dtype, device="cuda")[0].cpu())


@pytest.mark.gpu
@on_gpu
def test_an_overflow_on_a_gpu_skips_optimizer_and_scheduler() -> None:
    with session(precision="16-mixed", devices=1):
        found = unchanged(sgd, overflow=3, model=net().cuda())
    expected = by_hand(sgd, torch.float16, overflow=3, device="cuda")
    assert torch.equal(found[0].cpu(), expected[0].cpu())
    assert found[1] == expected[1] < 8


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("precision", "dtype"), [("16-true", torch.float16), ("bf16-true", torch.bfloat16)])
def test_true_precision_on_a_gpu(precision: str, dtype: torch.dtype) -> None:
    with session(precision=precision, devices=1):
        found = unchanged(sgd, model=net().cuda())
    assert found[0].dtype == dtype
    assert found[0].isfinite().all()
