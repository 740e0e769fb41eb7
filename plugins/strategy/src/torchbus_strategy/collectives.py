"""Collectives of the session: reduce, gather and broadcast, of tensors and Python objects."""

from __future__ import annotations

import ctypes
import hmac
import math
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torchbus.plugin import RankFailed, UsageError, an
from torchbus.runtime import active

from torchbus_device import accelerators
from torchbus_launch.store import TAG_BYTES, tag
from torchbus_strategy import compat

if TYPE_CHECKING:
    from torchbus.plugin import Context


OPERATIONS = {
    "mean": dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class SessionCollectives:
    """The collectives of one session, over all its ranks."""

    def __init__(self, session: Context) -> None:
        self._session = session

    def reduce(self, value: torch.Tensor | float, op: str) -> torch.Tensor:
        return reduce(value, op, self._session.device, self._session.world_size)

    def all_gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        return all_gather(value, self._session.device, self._session.world_size)

    def all_gather_object(self, value: object) -> list[Any]:
        return all_gather_object(value, self._session.world_size)


def reduce(
    value: torch.Tensor | float, op: str, device: torch.device, world_size: int
) -> torch.Tensor:
    """Return the mean, sum, maximum or minimum of a tensor or number over the ranks.

    Numbers are reduced in float64.
    """
    if op not in OPERATIONS:
        raise UsageError(f"op={op!r} is unknown: use one of {', '.join(OPERATIONS)}")
    tensor = accelerators.sent(_tensor(value).detach(), device).clone()
    if world_size > 1:
        dist.all_reduce(tensor, OPERATIONS[op])
    return tensor / world_size if op == "mean" else tensor


def all_gather(value: torch.Tensor, device: torch.device, world_size: int) -> list[torch.Tensor]:
    """Return the tensor of every rank, in rank order. Sizes in dim 0 may differ."""
    if not isinstance(value, torch.Tensor):
        raise UsageError(
            f"s.all_gather({_short(value)}): {an(type(value).__name__)} is not a tensor;"
            " s.all_gather_object takes any object"
        )
    rows = torch.atleast_1d(value.detach().to(device)).contiguous()
    shapes = all_gather_object((value.dim(), tuple(rows.shape)), world_size)
    if len({(dim, shape[1:]) for dim, shape in shapes}) != 1:
        raise UsageError(
            f"all_gather: the shapes {[shape for _, shape in shapes]} differ in more than dim 0."
            " Pad them to equal sizes, or use s.all_gather_object"
        )
    padded = rows.new_zeros((max(shape[0] for _, shape in shapes), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    if world_size > 1:
        dist.all_gather(gathered, padded)
    else:
        gathered = [padded]
    return [
        tensor[: shape[0]].reshape(shape if dim else ())
        for tensor, (dim, shape) in zip(gathered, shapes, strict=True)
    ]


def all_gather_object(
    value: object, world_size: int, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """Return a small picklable object of every rank of the group, in rank order."""
    if world_size == 1:
        return [value]
    message = _packed(value, group)
    sizes = [torch.zeros_like(message[:1], dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.full_like(sizes[0], len(message)), group=group)
    padded = message.new_zeros(int(max(sizes)))
    padded[: len(message)] = message
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(gathered, padded, group=group)
    return [
        _unpacked(packed[: int(size)], rank)
        for rank, (packed, size) in enumerate(zip(gathered, sizes, strict=True))
    ]


def extremes(numbers: Sequence[float], world_size: int) -> list[tuple[float, float]]:
    """Return the least and the greatest over ranks of each number; infinity stands for NaN.

    The message size is independent of the world size. All ranks must pass the same number of
    values.
    """
    mine = torch.tensor(numbers, dtype=torch.float64).nan_to_num(math.inf, math.inf, -math.inf)
    if world_size > 1:
        both = torch.cat([mine, -mine]).to(_device_of(None))
        dist.all_reduce(both, dist.ReduceOp.MAX)
        greatest, least = both.cpu().chunk(2)
        return list(zip((-least).tolist(), greatest.tolist(), strict=True))
    return list(zip(mine.tolist(), mine.tolist(), strict=True))


def broadcast_object(value: object) -> Any:
    """Return rank 0's small picklable object, whatever the other ranks pass. All ranks call it."""
    message = _packed(value, None)
    size = torch.full_like(message[:1], len(message), dtype=torch.int64)
    dist.broadcast(size, 0)
    packed = message if dist.get_rank() == 0 else message.new_empty(int(size))
    dist.broadcast(packed, 0)
    return _unpacked(packed, 0)


def sealed(value: object) -> bytes:
    """Pickle an object, signed with the job's key."""
    data = pickle.dumps(value)
    return tag(_key(), data) + data


def sendable(error: BaseException) -> BaseException:
    """Return the error, or a RankFailed that says the same if pickle can't make it again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RankFailed(f"{type(error).__name__}: {error}")
    return error


def _packed(value: object, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Pack an object into a tensor where the group's backend wants it: on the host if possible."""
    return torch.frombuffer(bytearray(sealed(value)), dtype=torch.uint8).to(_device_of(group))


def _device_of(group: dist.ProcessGroup | None) -> str:
    """Return where the group's backend wants tensors that Python reads."""
    kinds = compat.device_types(group or dist.group.WORLD)
    return "cpu" if "cpu" in kinds or not kinds else kinds[0]


def _unpacked(packed: torch.Tensor, rank: int) -> object:
    """Unpack an object of another rank."""
    on_host = packed.cpu().contiguous()
    return unsealed(ctypes.string_at(on_host.data_ptr(), on_host.numel()), f"rank {rank}")


def unsealed(message: bytes, sender: str) -> Any:
    """Return the object of another rank that ``sealed`` has made a message of.

    Raises RankFailed if no rank of this job has sent it. A pickle can run code, and strangers can
    reach a group's port.
    """
    data = message[TAG_BYTES:]
    if not hmac.compare_digest(message[:TAG_BYTES], tag(_key(), data)):
        raise RankFailed(
            f"a message from {sender} is not signed with this job's key: another program has"
            " connected to the process group. Use a network that only this job's hosts reach"
        )
    return pickle.loads(data)


def _key() -> bytes:
    """Return the job's key. Raises UsageError outside of a session, which has none."""
    session = active.running()
    if session is None or session.world.store is None:
        raise UsageError(
            "objects are gathered and broadcast only inside of a session: ranks recognise each"
            " other by its key, and a stranger's pickle could run code. Call it in 'with"
            " session(...)'"
        )
    return session.world.store.key


def _tensor(value: torch.Tensor | float) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"s.reduce({_short(value)}): {an(type(value).__name__)} is neither a tensor nor a"
            " number. s.all_gather_object takes any object"
        ) from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__


@contextmanager
def in_parts(session: Context) -> Iterator[None]:
    """Inside, ``state_dict()`` returns this rank's parts, without collectives.

    This holds for a strategy that declares ``divides_states = True``: its hooks of ``state_dict()``
    read ``session.gathers_states``. With any other strategy, states are whole.
    """
    divides = any(getattr(one, "divides_states", False) for _, one in session.bus.plugins())
    before, session.gathers_states = session.gathers_states, not divides
    try:
        yield
    finally:
        session.gathers_states = before
