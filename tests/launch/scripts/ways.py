"""One loop, and the ways into a session: ways.py FORM BATCH_SIZE [OPTIONS as JSON].

Prints the trained parameters (inside, by rank 0) and a line after the block by each process that
goes on.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.session import Session, current

NUM_SAMPLES, EPOCHS = 22, 2  # the last global batch is ragged


def make(batch_size: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(3)
    x = torch.randn(NUM_SAMPLES, 5, dtype=torch.float64)
    y = x.sin().sum(1, keepdim=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return model, optimizer, DataLoader(TensorDataset(x, y), batch_size, shuffle=True)


def train(batch_size: int, adopt: Callable[..., Any] = lambda *_: None) -> list[float]:
    """The loop as anybody writes it; returns the parameters."""
    model, optimizer, loader = make(batch_size)
    adopt(model, optimizer, loader)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    s = current()
    if s is not None:
        assert all(torch.equal(parameters, others) for others in s.all_gather(parameters)), (
            "the ranks differ"
        )
    return parameters.tolist()


def show(s: Session | None, parameters: list[float]) -> None:
    print(json.dumps({"ranks": s.world_size if s else 1, "parameters": parameters}), flush=True)


def plain(batch_size: int, **options: Any) -> list[float]:
    return train(batch_size)


def with_block(batch_size: int, **options: Any) -> list[float]:
    with session(**options) as s:
        parameters = train(batch_size)
        show(s, parameters)
    return parameters


def three_blocks(batch_size: int, **options: Any) -> list[float]:
    """The launcher's ranks, and what serves their store, go on after each."""
    for number in range(3):
        with session(**options) as s:
            parameters = train(batch_size)
            if number == 2:
                show(s, parameters)
    return parameters


def decorator(batch_size: int, **options: Any) -> list[float]:
    @session(**options)
    def main(batch: int, *, factor: int = 1) -> list[float]:
        parameters = train(batch * factor)
        show(current(), parameters)
        return parameters

    assert main.__name__ == "main"
    return main(batch_size // 2, factor=2)


def start_and_close(batch_size: int, **options: Any) -> list[float]:
    s = session(**options).start()
    parameters = train(batch_size)
    show(s, parameters)
    s.close()
    return parameters


def start_alone(batch_size: int, **options: Any) -> list[float]:
    s = session(**options).start()
    parameters = train(batch_size)
    show(s, parameters)
    return parameters


def adopt(batch_size: int, **options: Any) -> list[float]:
    with session(capture=False, **options) as s:
        parameters = train(batch_size, s.adopt)
        show(s, parameters)
        _, _, stranger = make(batch_size)
        assert sum(len(x) for x, _ in stranger) == NUM_SAMPLES, (
            "a loader that was not adopted was divided"
        )
    return parameters


def each_form(batch_size: int, **options: Any) -> None:
    """One after the other in one process, forked each time: on two ranks, on three ranks."""
    for form in (with_block, decorator, start_and_close, adopt):
        for devices in (2, 3):
            form(batch_size, devices=devices, launch="fork", **options)


if __name__ == "__main__":
    gc.freeze()  # a session looks through all objects; those of torch need not be among them
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    globals()[sys.argv[1]](int(sys.argv[2]), **options)
    print("after", flush=True)
