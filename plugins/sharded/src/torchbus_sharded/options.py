"""The options of the strategy ``fsdp``, and the engine's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torchbus.plugin import UsageError, World, expect

from torchbus_sharded import wrapping
from torchbus_sharded.meta import ParamInit
from torchbus_strategy.groups import mesh_sizes

DTYPES = {"bf16": torch.bfloat16, "16": torch.float16}


class EngineOptions(TypedDict, total=False):
    """Arguments of ``fully_shard``."""

    reshard_after_forward: bool
    mp_policy: MixedPrecisionPolicy
    offload_policy: OffloadPolicy


@dataclass(frozen=True)
class ShardingOptions:
    """The validated options of ``FSDP`` for sharding models."""

    policy: wrapping.Policy
    reshard_after_forward: bool | None
    mixed_precision: str | None
    cpu_offload: bool
    hybrid: bool
    forward_methods: tuple[str, ...]
    param_init_fn: ParamInit | None
    tp: int | None = None

    def __post_init__(self) -> None:
        wrapping.check(self.policy)
        expect(
            "reshard_after_forward",
            self.reshard_after_forward,
            (bool, type(None)),
            "True, False or None",
        )
        expect("cpu_offload", self.cpu_offload, bool, "True or False")
        expect("hybrid", self.hybrid, bool, "True or False")
        if self.mixed_precision not in (None, *DTYPES):
            raise UsageError(
                f"mixed_precision={self.mixed_precision!r} is unknown: use 'bf16', '16' or None"
            )
        if self.param_init_fn is not None and not callable(self.param_init_fn):
            raise UsageError(
                f"param_init_fn={self.param_init_fn!r}: it must be a function of a module, or None"
            )
        expect("tp", self.tp, (int, type(None)), "a number of ranks that share a layer, such as 2")
        if self.tp is not None and self.tp < 1:
            raise UsageError(f"tp={self.tp}: say how many ranks share a layer, such as tp=2")

    def check_device(self, device: torch.device) -> None:
        """Raise UsageError if this rank's device does not support the options."""
        if self.cpu_offload and device.type == "cpu":
            raise UsageError(
                "cpu_offload=True needs GPUs: on CPU the parts are in host memory anyway. Leave it"
                " out"
            )

    def sizes(self, world: World) -> dict[str, int]:
        """Return the mesh's dimensions: one, or nodes x ranks of a node, and optionally "tp".

        Raises UsageError if ``tp`` does not divide the ranks.
        """
        size = self.tp or 1
        divided = world.local_world_size if self.hybrid else world.world_size
        self.check_ranks(divided, " on a node" if self.hybrid else "")
        sizes = {"dp_replicate": world.num_nodes, "dp_shard": divided // size}
        return (sizes if self.hybrid else {"dp": divided // size}) | (
            {} if self.tp is None else {"tp": size}
        )

    def check_ranks(self, ranks: int, where: str = "") -> None:
        """Raise UsageError if this number of ranks can't form groups of ``tp`` ranks."""
        if self.tp and ranks % self.tp:
            raise UsageError(
                f"tp={self.tp} with {ranks} {'ranks' if ranks > 1 else 'rank'}{where}: ranks form"
                " groups of tp ranks, so tp must divide their number. Change devices= or tp="
            )

    def check_mesh(self, world: World) -> None:
        """Raise UsageError if another strategy has made a different mesh."""
        if self.sizes(world) != mesh_sizes(world):
            raise UsageError(
                "fsdp inside of replicas that come and go shards over all ranks of a replica: leave"
                " hybrid= and tp= out"
            )

    def shards(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return the mesh dimensions for sharding and replicating parameters."""
        return mesh["dp_replicate", "dp_shard"] if self.hybrid else mesh["dp"]

    def share_of_layers(self, mesh: DeviceMesh) -> str:
        """Return the text that ``explain()`` adds to a rank's share of a model."""
        return f", and 1/{mesh.size(-1) * self.tp} of each layer of the plan" if self.tp else ""

    def of_engine(self, outputs: torch.dtype | None) -> EngineOptions:
        """Return the arguments of ``fully_shard``.

        With mixed precision a model returns the dtype ``outputs``. For inner units it is None, so
        they return the dtype of their computation.
        """
        options = EngineOptions()
        if self.reshard_after_forward is not None:
            options["reshard_after_forward"] = self.reshard_after_forward
        if self.mixed_precision is not None:
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=DTYPES[self.mixed_precision],
                reduce_dtype=torch.float32,
                output_dtype=outputs,
            )
        if self.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy()
        return options
