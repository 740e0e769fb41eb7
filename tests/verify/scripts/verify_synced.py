"""``torchbus verify`` on the simulated accelerator, with the kernels that SyncBatchNorm needs.

torch has them for GPUs only. These are written out here.
"""

from __future__ import annotations

import sys

import torch

import torchbus_simulator as accelerator
from torchbus_verify.command import main

accelerator.load(devices=2)
KERNELS = torch.library.Library("aten", "IMPL")


def wide(values, like):
    return values.view(1, -1, *[1] * (like.dim() - 2))


def others(x):
    return [d for d in range(x.dim()) if d != 1]


def stats(x, eps):
    return x.mean(others(x)), (x.var(others(x), unbiased=False) + eps).rsqrt()


def gather(x, means, invstds, running_mean, running_var, momentum, eps, counts):
    counts = counts.view(-1, 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    squares = (invstds.pow(-2) - eps + (means - mean).square()) * counts
    var = squares.sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
        running_var.mul_(1 - momentum).add_(momentum * squares.sum(0) / (total - 1))
    return mean, (var + eps).rsqrt()


def elemt(x, weight, bias, mean, invstd, eps):
    return (x - wide(mean, x)) * wide(invstd * weight, x) + wide(bias, x)


def reduce(grad, x, mean, invstd, weight, *_):
    dy = grad.sum(others(x))
    dy_xmu = (grad * (x - wide(mean, x))).sum(others(x))
    return dy, dy_xmu, dy_xmu * invstd, dy


def backward_elemt(grad, x, mean, invstd, weight, dy, dy_xmu, count):
    n = count.sum()
    inner = grad - wide(dy / n, x) - (x - wide(mean, x)) * wide(invstd.square() * dy_xmu / n, x)
    return inner * wide(invstd * weight, x)


for name, kernel in {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather,
    "batch_norm_elemt": elemt,
    "batch_norm_backward_reduce": reduce,
    "batch_norm_backward_elemt": backward_elemt,
}.items():
    KERNELS.impl(name, kernel, "PrivateUse1")

raise SystemExit(main(sys.argv[1:]))
