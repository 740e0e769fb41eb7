"""(a) A model so small that the host is the limit: microseconds per step, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from common import arguments, device, in_session, row, seconds_per_step
from torch import nn

PART = "host-bound step"
NOTHING: dict[str, Any] = {}
SESSIONS = {
    "session": NOTHING,
    "ddp, one rank": {"strategy": "ddp"},
    "clip": {"gradient_clip_val": 1.0},
    "amp bf16": {"precision": "bf16-mixed"},
    "accumulate 4": {"accumulate_grad_batches": 4},
}


def make() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device())
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(8, 16, device=device())


def step_of(around: Any = nullcontext, clips: bool = False) -> Callable[[], None]:
    model, optimizer, x = make()

    def step() -> None:
        optimizer.zero_grad()
        with around():
            loss = model(x).square().mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def of_fabric() -> Callable[[], None]:
    from lightning_fabric import Fabric

    fabric = Fabric(devices=1, accelerator="auto")
    model, optimizer, x = make()
    model, optimizer = fabric.setup(model, optimizer)
    return _wrapped(model, optimizer, x, fabric.backward)


def of_accelerate() -> Callable[[], None]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer, x = make()
    model, optimizer = accelerator.prepare(model, optimizer)
    return _wrapped(model, optimizer, x, accelerator.backward)


def _wrapped(model: Any, optimizer: Any, x: Any, backward: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        backward(model(x).square().mean())
        optimizer.step()

    return step


@contextmanager
def logging() -> Iterator[Callable[[], None]]:
    from torchbus_testing.recorder import RecordingLogger

    with in_session("log", logger=RecordingLogger()) as s:
        model, optimizer, x = make()

        def step() -> None:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            s.log("loss", loss)

        yield step


def main() -> None:
    steps, microseconds = 5 if arguments().small else 200, 1e6
    kind = device().type
    by_hand: dict[str, Callable[[], None]] = {
        "by hand": step_of(),
        "by hand, clip": step_of(clips=True),
        "by hand, autocast bf16": step_of(lambda: torch.autocast(kind, torch.bfloat16)),
    }
    base = {name: seconds_per_step(step, steps) * microseconds for name, step in by_hand.items()}
    for name, found in base.items():
        row(PART, name, found, "us")
    alike = {"clip": "by hand, clip", "amp bf16": "by hand, autocast bf16"}
    for name, options in SESSIONS.items():
        with in_session(**options):
            found = seconds_per_step(step_of(), steps) * microseconds
            row(PART, name, found, "us", base[alike.get(name, "by hand")])
    with logging() as step:
        row(PART, "log", seconds_per_step(step, steps) * microseconds, "us", base["by hand"])
    for name, other in (("Fabric", of_fabric), ("Accelerate", of_accelerate)):
        try:
            found = seconds_per_step(other(), steps) * microseconds
            row(PART, name, found, "us", base["by hand"])
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
