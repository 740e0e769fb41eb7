"""Runs one loop of the zoo in this process and writes down what the harness compares.

    python runner.py [--session JSON] [--setup-first] OUT LOOP ARGS...

Every rank leaves a record of torchbus-verify in OUT/rank{r}: its batches, its backwards, and at the
end the facts, the values and the saves. `AFTER` is printed where the script that has the block would
go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchbus_verify.record.batches import BatchRecorder
from torchbus_verify.record.writing import RecordWriter

Facts = dict[str, Tensor | None]
BIGGEST_VALUE = 10_000


class Recorder:
    """What the optimizers saw, what was taken from loaders and what was saved on this rank."""

    def __init__(self, out: Path, rank: int) -> None:
        self.writer = RecordWriter(out / f"rank{rank}", keep_tensors=True)
        self.backwards = 0
        self.optimizers: list[Optimizer] = []
        self.steps: dict[int, int] = {}
        self.first_gradients: dict[str, Any] = {}
        self.saves: list[str] = []

    def install(self) -> None:
        # After the step, not before it: whatever else hooks the step has done its work, and .grad
        # is what was used.
        register_optimizer_step_post_hook(self.after_step)
        BatchRecorder(self.writer).install()
        surround(torch.autograd, "backward", self.backward)
        surround(torch.serialization, "_open_zipfile_writer", self.save)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self.steps:
            self.optimizers.append(optimizer)
            name = f"first gradient of optimizer{len(self.optimizers) - 1}"
            self.first_gradients |= self.writer.tensors(
                {f"{name}.{at}": p.grad for at, p in held_parameters(optimizer)}
            )
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        if not self.backwards:  # gradients of torch.autograd.grad
            self.writer.write("backward", number=0)

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self.writer.write("backward", number=self.backwards)
        self.backwards += 1
        return result

    def save(self, original: Callable[..., Any], target: Any) -> Any:
        has_place = hasattr(target, "name") and os.fstat(target.fileno()).st_nlink > 0
        if isinstance(target, str | os.PathLike) or has_place:
            self.saves.append(str(getattr(target, "name", target)))
        return original(target)

    def dump(self, namespace: dict[str, Any]) -> None:
        if isinstance(namespace.get("result"), dict):
            namespace = {**namespace, **namespace["result"]}
        facts = self.writer.tensors({**self.optimizer_facts(), **named_facts(namespace)})
        self.writer.write(
            "end",
            facts={**self.first_gradients, **facts},
            values=self.writer.tensors(values(namespace)),
            saves=self.saves,
        )

    def optimizer_facts(self) -> Facts:
        facts: Facts = {}
        for number, optimizer in enumerate(self.optimizers):
            name = f"optimizer{number}"
            facts[f"{name}.steps"] = number_of(self.steps[id(optimizer)])
            facts |= {
                f"{name}.lr{i}": number_of(group["lr"])
                for i, group in enumerate(optimizer.param_groups)
            }
            facts |= {f"{name}.{at}": p for at, p in held_parameters(optimizer)}
        return facts


def surround(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))


def held_parameters(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield f"group{g}.{i}", parameter


def named_facts(namespace: dict[str, Any]) -> Facts:
    """Parameters and buffers of every module, and the position of every scheduler, that the script
    has a name for.
    """
    facts: Facts = {}
    seen: set[int] = set()
    for name, thing in namespace.items():
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            facts |= {f"{name}.{key}": p for key, p in thing.named_parameters()}
            facts |= {f"{name}.{key}": b for key, b in thing.named_buffers()}
        elif isinstance(thing, LRScheduler):
            facts[f"{name}.last_epoch"] = number_of(thing.last_epoch)
    return facts


def values(namespace: dict[str, Any]) -> Facts:
    def small(value: Any) -> bool:
        return isinstance(value, int | float) or (
            isinstance(value, Tensor) and value.numel() <= BIGGEST_VALUE
        )

    return {name: number_of(value) for name, value in namespace.items() if small(value)}


def number_of(value: Tensor | float) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def current_rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("ZOO_RANK", 0))


@contextlib.contextmanager
def the_line(options: str | None) -> Iterator[None]:
    if options is None:
        yield
        return
    from torchbus import session

    with session(**json.loads(options)):
        yield


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--session", help="options of the session around the loop, as JSON; without it, no session"
    )
    parser.add_argument(
        "--setup-first", action="store_true", help="run the script's top level before the block"
    )
    parser.add_argument("--sim", action="store_true", help="on the simulated accelerator")
    parser.add_argument("out", type=Path)
    parser.add_argument("loop")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    multiprocessing.set_start_method("fork", force=True)  # loader workers inherit the recorder
    if options.sim:
        import torchbus_simulator as accelerator

        accelerator.load(devices=2)
    torch.set_num_threads(1)  # sums are the same on every machine

    arguments = [options.loop, *options.args]
    original_arguments, setup = sys.argv, {}
    if options.setup_first:
        sys.argv = arguments
        setup = runpy.run_path(options.loop, run_name="setup")
        sys.argv = original_arguments  # the session launches the other ranks with them
    with the_line(options.session):
        recorder = Recorder(options.out, current_rank())
        recorder.install()
        sys.argv = arguments
        if setup:
            recorder.dump({**setup, "result": setup["main"]()})
        else:
            recorder.dump(runpy.run_path(options.loop, run_name="__main__"))
    print("AFTER")


if __name__ == "__main__":
    main()
