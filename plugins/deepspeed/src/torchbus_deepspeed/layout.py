"""The layout: where each parameter's elements are in the flat shards of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbus_deepspeed import _compat as deepspeed_zero


def layout_of(zero: Any, stage: int, rank: int) -> ParameterLayout:
    places = {}
    for number, group in enumerate(deepspeed_zero.groups_of(zero, stage)):
        at = 0
        for index, parameter in enumerate(group):
            shape = deepspeed_zero.shape_of(parameter)
            if stage == 3:
                part = getattr(parameter, deepspeed_zero.PARTITION_NUMEL)()
                pieces = cut_by_parameter(at, shape, part)
                at += part
            else:
                start = zero.round_robin_bit16_offsets[number][index]
                pieces = cut_by_group(start, shape, int(zero.partition_size[number]))
            places[id(parameter)] = ParameterPlace(number, shape, pieces)
    return ParameterLayout(places, rank)


Gather = Callable[[Tensor], list[Tensor]]
"""Returns the tensors of all ranks, in rank order. All ranks must call it."""


class Piece(NamedTuple):
    """A slice of a parameter (``start``, ``numel``), and its offset ``at`` in a flat shard."""

    rank: int
    at: int
    start: int
    numel: int


class ParameterPlace(NamedTuple):
    """The place of a parameter: its flat group, and its pieces in the shards of all ranks."""

    group: int
    shape: torch.Size
    pieces: tuple[Piece, ...]


class ParameterLayout:
    """The places of an engine's parameters, by their ids. ``rank`` is this rank's number."""

    def __init__(self, places: dict[int, ParameterPlace], rank: int) -> None:
        self._places = places
        self._rank = rank

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._places

    def __getitem__(self, parameter: Tensor) -> ParameterPlace:
        return self._places[id(parameter)]

    def local_pieces(self, parameter: Tensor) -> Iterator[tuple[int, Piece]]:
        """Yield this rank's pieces of a parameter, each with its group."""
        place = self[parameter]
        return ((place.group, piece) for piece in place.pieces if piece.rank == self._rank)

    def views(self, parameter: Tensor, flats: Sequence[Tensor | None]) -> list[Tensor]:
        """Return views of this rank's pieces of a parameter in ``flats``, one tensor per group."""
        found = [(flats[group], piece) for group, piece in self.local_pieces(parameter)]
        return [flat.narrow(0, piece.at, piece.numel) for flat, piece in found if flat is not None]

    @torch.no_grad()
    def put(self, parameter: Tensor, value: Tensor, flats: Sequence[Tensor]) -> None:
        """Write this rank's pieces of a whole tensor into ``flats``."""
        elements = value.detach().reshape(-1)
        for group, piece in self.local_pieces(parameter):
            part = elements.narrow(0, piece.start, piece.numel)
            flats[group].narrow(0, piece.at, piece.numel).copy_(part)

    @torch.no_grad()
    def whole(
        self, parameters: Iterable[Tensor], flats: Sequence[Tensor | None], gather: Gather
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its whole tensor, in the parameter's shape.

        All ranks must call this, and exhaust the iterator. It runs one collective for each group. A
        group whose shard is None must be None on all ranks, and its parameters are left out.
        """
        wanted = list(parameters)
        for group, flat in enumerate(flats):
            inside = [parameter for parameter in wanted if self[parameter].group == group]
            parts = gather(flat) if inside and flat is not None else []
            for parameter in inside if parts else []:
                yield parameter, _assembled(self[parameter], parts)


def _assembled(place: ParameterPlace, parts: Sequence[Tensor]) -> Tensor:
    whole = parts[0].new_empty(place.shape.numel())
    for piece in place.pieces:
        part = parts[piece.rank].narrow(0, piece.at, piece.numel)
        whole.narrow(0, piece.start, piece.numel).copy_(part)
    return whole.view(place.shape)


def cut_by_group(start: int, shape: torch.Size, part: int) -> tuple[Piece, ...]:
    """Return the pieces of a parameter that begins at ``start`` of a flat group.

    The group is cut into equal parts of ``part`` elements, one for each rank (stages 1 and 2).
    """
    end = start + shape.numel()
    found = []
    for rank in range(start // part, -(-end // part)):
        low, high = max(start, rank * part), min(end, (rank + 1) * part)
        if high > low:
            found.append(Piece(rank, low - rank * part, low - start, high - low))
    return tuple(found)


def cut_by_parameter(at: int, shape: torch.Size, part: int) -> tuple[Piece, ...]:
    """Return the pieces of a parameter that is cut into shards of ``part`` elements (stage 3)."""
    numel = shape.numel()
    ranks = range(-(-numel // part) if part else 0)
    return tuple(Piece(rank, at, rank * part, min(part, numel - rank * part)) for rank in ranks)
