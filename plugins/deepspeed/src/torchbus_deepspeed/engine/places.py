"""The layout of a ZeRO optimizer's parameters."""

from __future__ import annotations

from typing import Any

from torchbus_deepspeed._compat import zero as deepspeed_zero
from torchbus_deepspeed.engine.layout import Layout, Place, cut_by_group, cut_by_parameter


def layout_of(zero: Any, stage: int, rank: int) -> Layout:
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
            places[id(parameter)] = Place(number, shape, pieces)
    return Layout(places, rank)
