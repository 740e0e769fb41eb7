"""Each rank forks a process that begins sessions: forked_by_a_rank.py LAUNCH."""

import contextlib
import multiprocessing
import sys

import torch
from torchbus import session
from torchbus.errors import UsageError
from torchbus.session import current

OPTIONS = {"devices": 2, "accelerator": "cpu", "launch": "fork", "timeout_s": 20}
ALONE = {"accelerator": "cpu", "strategy": None}


def step(model):
    model(torch.ones(4, 2)).mean().backward()


def begin(report, options):
    try:
        with session(**options) as s:
            step(torch.nn.Linear(2, 1))
            if s.is_main:
                report.send(f"rank {s.rank} of {s.world_size}")
    except UsageError as error:
        report.send(str(error))


def in_a_fork(function, *arguments):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=function, args=(there, *arguments))
    child.start()
    print(here.recv() if here.poll(30) else "nothing", flush=True)
    child.join()


def train():
    model = torch.nn.Linear(2, 1)
    step(model)
    in_a_fork(begin, OPTIONS)
    in_a_fork(begin, ALONE)
    step(model)
    print("both go on", flush=True)


if __name__ == "__main__":
    begun = current()
    with contextlib.nullcontext() if begun else session(**(OPTIONS | {"launch": sys.argv[1]})):
        train()
    if begun is None:
        in_a_fork(begin, OPTIONS)
