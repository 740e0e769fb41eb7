"""Which plain PyTorch does what the plugins of a session do. The page is docs/by-hand.md."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PAGE = "docs/by-hand.md"


@dataclass(frozen=True)
class Part:
    """What a plugin does, and the section of the page that does it without."""

    plugin: str
    does: str
    by_hand: str
    anchor: str


PARTS = (
    Part(
        "ddp",
        "starts ranks and averages gradients",
        "init_process_group, DistributedDataParallel",
        "processes-and-gradients",
    ),
    Part(
        "ddp",
        "makes the loss that is printed the mean over ranks",
        "all_reduce of loss.detach()",
        "loss",
    ),
    Part("sampler", "divides the data", "DistributedSampler, set_epoch", "data"),
    Part("sampler", "keeps evaluation exact", "every rank sees all of it", "evaluation"),
    Part("ddp", "prints and saves once", "if rank == 0, os.replace, barrier", "files"),
    Part("accumulate", "accumulates gradients", "no_sync, loss / k", "accumulation"),
    Part("amp", "computes in lower precision", "autocast, GradScaler", "precision"),
    Part("clip", "clips gradients", "clip_grad_norm_", "clipping"),
    Part(
        "activation",
        "computes activations again in backward",
        "torch.utils.checkpoint",
        "activation-checkpointing",
    ),
    Part("ddp_sharded", "shards optimizer states", "ZeroRedundancyOptimizer", "sharded-states"),
    Part("fsdp", "shards parameters, gradients and states", "fully_shard", "sharded-models"),
)
ALWAYS = ("processes-and-gradients", "loss", "files")
"""What every strategy does for several ranks."""


def parts(plugins: Collection[str], ranks: int) -> str:
    """A table of those that the session replaces."""
    replaced = [one for one in PARTS if one.plugin in plugins]
    if ranks > 1:
        replaced = [one for one in PARTS if one in replaced or one.anchor in ALWAYS]
    else:
        replaced = [one for one in replaced if one.plugin not in ("ddp", "sampler")]
    if not replaced:
        return "by hand     nothing: on one rank this session does nothing to the loop"
    lines = [f"  {one.does}: {one.by_hand} (#{one.anchor})" for one in replaced]
    return "\n".join([f"by hand, in plain PyTorch ({PAGE}):", *lines])
