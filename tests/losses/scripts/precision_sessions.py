"""The unchanged loops of precision.py under sessions: precision_sessions.py RANKS EVERY.

Of the loops with options, and of the kinds of optimizers, one in EVERY runs.
"""

from __future__ import annotations

import json
import sys
import warnings

import precision
import precision_gan
import torch
import torch.distributed as dist
from torchbus import session

RANKS, EVERY = map(int, sys.argv[1:])
WAY = {"strategy": "ddp", "devices": RANKS, "launch": "fork"} if RANKS > 1 else {}
warnings.simplefilter("error")
# torch, of the hook by which ddp finds models
warnings.filterwarnings("ignore", "Using `torch.compile")
# the losses of a window's batches are one rank's
warnings.filterwarnings("ignore", "the loop in line .* computes 'loss'")


def options(name):
    words = name.split()
    given = {"accumulate_grad_batches": 3} if "accumulate" in words else {}
    given |= {"gradient_clip_val": 0.001} if "clip" in words else {}
    return given | {"precision": f"{words[0]}-mixed"} if words[0] in ("16", "bf16") else given


def run(name, batch):
    dtype = torch.float32 if name.split()[0] in ("16", "bf16") else torch.float64
    with session(**WAY, **options(name)):
        return precision.unchanged(batch, dtype)


def sessions():
    found = {}
    names = [
        " ".join(filter(None, (first, rest)))
        for first in ("16", "bf16", "")
        for rest in ("accumulate clip", "accumulate", "clip", "")
    ]
    for name in names[:-1:EVERY]:
        found[name] = run(name, precision.BATCH)
    with session(**WAY, accumulate_grad_batches=2):
        found["gan"] = precision_gan.gan(3)
    with session(**WAY, accumulate_grad_batches=3):
        found["sparse"] = precision.sparse(precision.BATCH)
    for kind in [kind for kind in precision.KINDS if kind != "plain"][::EVERY]:
        with session(**WAY, accumulate_grad_batches=3, gradient_clip_val=0.001):
            found[f"kind {kind}"] = precision.unchanged(precision.BATCH, kind=kind)
    with session(**WAY, accumulate_grad_batches=3) as s:
        found["tokens"] = precision.tokens(3, s.backward_weight)
    with session(**WAY) as s:
        found["toggle"] = precision_gan.toggled(2, s.toggle, lambda index, loader: s.is_last_batch)
    return found


def count_toggled():
    """Calls of the process group in one backward with ``sync_grad=False``, and in one with True."""
    counts = []
    with session(**WAY) as s:
        net, optimizer, _ = precision.make(torch.float64)
        _other = precision.make(torch.float64)
        for sync in (True, False, True):
            with (
                torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
                s.toggle(optimizer, sync_grad=sync),
            ):
                net(torch.ones(2, 3).double()).square().mean().backward()
            counts.append(
                sum(
                    event.count
                    for event in profile.key_averages()
                    if event.key.startswith(("gloo:", "c10d::"))
                )
            )
    return counts


def count_collectives(**given):
    """Calls of the process group in each of two windows of 4 batches."""
    counts = []
    with session(**WAY, **given):
        net, optimizer, _ = precision.make(torch.float64)
        loader = precision.DataLoader(precision.TensorDataset(torch.randn(32, 3)), batch_size=2)
        for (x,) in loader:
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                optimizer.zero_grad()
                net(x.double()).square().mean().backward()
                optimizer.step()
            counts.append(
                sum(
                    event.count
                    for event in profile.key_averages()
                    if event.key.startswith(("gloo:", "c10d::"))
                )
            )
    return counts


found = sessions()
if RANKS > 1:
    found["toggled"] = count_toggled()
    found["collectives"] = [count_collectives(), count_collectives(accumulate_grad_batches=4)]
assert not dist.is_initialized()
print(json.dumps(found))
