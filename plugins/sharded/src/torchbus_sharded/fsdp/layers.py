"""Layers that another plugin divides first, over the ranks of ``tp=``."""

from __future__ import annotations

from torch.nn import Module
from torchbus.plugin import Context, UsageError


def divide_layers(session: Context, model: Module) -> None:
    """Let it do so. All ranks call it. Raises UsageError if there is no such plugin."""
    mesh = session.world.mesh["tp"]
    if session.bus.hook.divide_layers(model=model, mesh=mesh) is None:
        raise UsageError(
            f"tp={mesh.size()} with strategy='fsdp': no plugin divides the layers of"
            f" {type(model).__name__}: pip install torchbus-tensor-parallel"
        )
