"""Runs one loop of the zoo in this process and writes down what the harness compares.

    python runner.py [--session JSON] [--setup-first] OUT LOOP ARGS...

Every rank leaves OUT/rank{r}.pkl (facts, values and saves, as numpy arrays) and OUT/ledger{r}.jsonl (the samples it
fetched, in order, its loader workers' too). `AFTER` is printed where the script that has the block would go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import pickle
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

Facts = dict[str, np.ndarray | None]
BIGGEST_VALUE = 10_000


class Recorder:
    """What the optimizers saw, what was fetched and what was saved on this rank."""

    def __init__(self, out: Path, rank: int) -> None:
        self.out, self.rank = out, rank
        self.optimizers: list[Optimizer] = []
        self.steps: dict[int, int] = {}
        self.first_gradients: Facts = {}
        self.saves: list[str] = []

    def install(self) -> None:
        # After the step, not before it: whatever else hooks the step has done its work, and .grad is what was used.
        register_optimizer_step_post_hook(self.after_step)
        # Torch's own names, below the seams: what is recorded is what happens, whatever is patched above them.
        surround(fetch._MapDatasetFetcher, "fetch", self.fetch_map)
        surround(fetch._IterableDatasetFetcher, "fetch", self.fetch_iterable)
        surround(torch.serialization, "_open_zipfile_writer", self.save)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self.steps:
            self.optimizers.append(optimizer)
            name = f"first gradient of optimizer{len(self.optimizers) - 1}"
            self.first_gradients |= {f"{name}.{at}": array(p.grad) for at, p in held_parameters(optimizer)}
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1

    def fetch_map(self, original: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        dataset = fetcher.dataset
        samples = [int(i) for i in index] if isinstance(index, list | tuple) else [int(index)]
        self.write(fetcher, f"{type(dataset).__name__}[{len(dataset)}]", samples)
        return original(fetcher, index)

    def fetch_iterable(self, original: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        if not hasattr(fetcher, "zoo_taken"):
            fetcher.zoo_taken = []
            fetcher.dataset_iter = remember(fetcher.dataset_iter, fetcher.zoo_taken)
        fetcher.zoo_taken.clear()
        batch = original(fetcher, index)
        self.write(fetcher, "iterable", list(fetcher.zoo_taken))
        return batch

    def write(self, fetcher: Any, loader: str, samples: list[Any]) -> None:
        worker = get_worker_info()
        entry = {
            "loader": loader,
            "worker": worker.id if worker else 0,
            "grad": torch.is_grad_enabled(),
            "new_pass": not hasattr(fetcher, "zoo_seen"),
            "samples": samples,
        }
        fetcher.zoo_seen = True
        with open(self.out / f"ledger{self.rank}.jsonl", "a") as file:
            file.write(json.dumps(entry) + "\n")

    def save(self, original: Callable[..., Any], target: Any) -> Any:
        if isinstance(target, str | os.PathLike) or hasattr(target, "name"):
            self.saves.append(str(getattr(target, "name", target)))
        return original(target)

    def dump(self, namespace: dict[str, Any]) -> None:
        if isinstance(namespace.get("result"), dict):
            namespace = {**namespace, **namespace["result"]}
        facts = {**self.first_gradients, **self.optimizer_facts(), **named_facts(namespace)}
        record = {"facts": facts, "values": values(namespace), "saves": self.saves}
        # Not torch.save, which is one of the things under test.
        (self.out / f"rank{self.rank}.pkl").write_bytes(pickle.dumps(record))

    def optimizer_facts(self) -> Facts:
        facts: Facts = {}
        for number, optimizer in enumerate(self.optimizers):
            name = f"optimizer{number}"
            facts[f"{name}.steps"] = array(self.steps[id(optimizer)])
            facts |= {f"{name}.lr{i}": array(group["lr"]) for i, group in enumerate(optimizer.param_groups)}
            facts |= {f"{name}.{at}": array(p) for at, p in held_parameters(optimizer)}
        return facts


def surround(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, lambda *args: around(original, *args))


def held_parameters(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield f"group{g}.{i}", parameter


def named_facts(namespace: dict[str, Any]) -> Facts:
    """Parameters and buffers of every module, and the position of every scheduler, that the script has a name for."""
    facts: Facts = {}
    seen: set[int] = set()
    for name, thing in namespace.items():
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            facts |= {f"{name}.{key}": array(p) for key, p in thing.named_parameters()}
            facts |= {f"{name}.{key}": array(b) for key, b in thing.named_buffers()}
        elif isinstance(thing, LRScheduler):
            facts[f"{name}.last_epoch"] = array(thing.last_epoch)
    return facts


def values(namespace: dict[str, Any]) -> Facts:
    def small(value: Any) -> bool:
        return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() <= BIGGEST_VALUE)

    return {name: array(value) for name, value in namespace.items() if small(value)}


def array(value: Tensor | float | None) -> np.ndarray | None:
    if value is None:
        return None
    if hasattr(value, "full_tensor"):  # of fsdp; all ranks come here alike
        value = value.full_tensor()
    if isinstance(value, Tensor):
        return value.detach().to_dense().to("cpu", torch.float64, copy=True).numpy()
    return np.asarray(value, dtype=np.float64)


def remember(items: Iterator[Any], taken: list[float]) -> Iterator[Any]:
    """Pass on the items of an iterable dataset and note each by the sum of its first tensor, which tells it apart."""
    for item in items:
        taken.append(round(float(tree_leaves(item)[0].sum()), 9))
        yield item


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
    parser.add_argument("--session", help="options of the session around the loop, as JSON; without it, no session")
    parser.add_argument("--setup-first", action="store_true", help="run the script's top level before the block")
    parser.add_argument("out", type=Path)
    parser.add_argument("loop")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    multiprocessing.set_start_method("fork", force=True)  # loader workers inherit the recorder
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
