"""Per-backward metadata of the ranks, in the first gradient bucket: no extra collective.

The header is one more "parameter" of the reducer, whose "gradient" is a vector of numbers. The
reducer averages it like any other, so each rank reads the mean over ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from torchbus_device import accelerators
from torchbus_strategy.checks.constants import MODULUS, equal_on_all_ranks
from torchbus_strategy.loss import terms
from torchbus_strategy.loss.intermediate_values import Part
from torchbus_strategy.loss.terms import Count, Number, weighted

PARTS = 4  # numbers that the loss is made of
NUM_BASIC = 14 + PARTS
(
    LOSS,
    RAW_LOSS,
    PROGRESS,
    PROGRESS_SQUARED,
    POSITION,
    POSITION_SQUARED,
    INPUT,
    SAMPLE,
    CONSTANTS,
    CONSTANTS_SQUARED,
    BUFFERS,
    BUFFERS_SQUARED,
    KIND,
    KIND_SQUARED,
    FIRST_PART,
) = range(NUM_BASIC - PARTS + 1)
SLOTS = NUM_BASIC + terms.SLOTS
WEIGHT, COUNTED = NUM_BASIC + terms.WEIGHT, NUM_BASIC + terms.COUNTED
WITH_SQUARE = [(float(number), float(number * number)) for number in range(MODULUS)]
NO_PARTS = (0.0,) * (2 + PARTS)
UNCOUNTED = 2.0**-20  # marks gradients of samples that do not count; its mean is below SOME
SOME = 1e-6
Slots = list[Number | None]


def numbers(
    count: Count,
    progress: int,
    position: int,
    input_sum: float,
    constants: int = 0,
    buffers: int = 0,
) -> Slots:
    """Return the slots that are known before the backward. ``Header.fill`` adds the others."""
    return [
        *(count.value, 0.0),
        *WITH_SQUARE[progress % MODULUS],
        *WITH_SQUARE[position % MODULUS],
        *(input_sum, 0.0),
        *WITH_SQUARE[constants],
        *WITH_SQUARE[buffers],
        *NO_PARTS,
        *count.to_metadata(),
    ]


def add_parts(slots: Slots, kind: int, parts: Sequence[Number]) -> None:
    """Add the numbers that the loss is made of. ``kind`` is a checksum of their names."""
    slots[KIND], slots[KIND_SQUARED] = float(kind % MODULUS), float((kind % MODULUS) ** 2)
    for slot, part in enumerate(parts, FIRST_PART):
        slots[slot] = part.item() if isinstance(part, Tensor) and part.is_cpu else part


class Header:
    """The header in host memory, as an array, which Python reads and writes faster than a tensor.

    The header's gradient shares its memory with that array.

    Attributes:
        parameter: The parameter whose gradient is the header.
        seed: Zeros, the gradient with which ``parameter`` starts.
        slots: This rank's metadata of this backward.
        agrees: Whether all ranks sent the same facts, digit for digit. ``receive`` sets it.
        dropped: Which parameters got a gradient that was dropped, because this rank's samples do
            not count.
    """

    def __init__(self, parameters: int, dtype: torch.dtype) -> None:
        self.parameter = nn.Parameter(torch.zeros(SLOTS + parameters, dtype=dtype))
        self.seed = torch.zeros(SLOTS + parameters, dtype=dtype)
        self.slots: Slots = []
        self.agrees = False
        self.dropped: Sequence[bool] = ()
        self._code: Literal["d", "f"] = "d" if dtype == torch.float64 else "f"
        self._array: array[float] = array(self._code, [0.0]) * (SLOTS + parameters)
        self._gradient = torch.frombuffer(self._array, dtype=dtype)
        self._everything = array(self._code, [1.0]) * parameters

    def begin(self, slots: Slots) -> None:
        """Set this rank's metadata, before the graph runs."""
        self.slots = slots
        self.parameter.grad = self._gradient

    def fill(self, loss: Tensor | None, sample: Tensor, present: Sequence[bool]) -> Tensor:
        """Complete this rank's metadata, and return the gradient of the header.

        ``present`` says which parameters get a gradient here. ``sample`` is one element of one
        parameter, which must be the same on all ranks.
        """
        slots = self.slots
        if loss is not None:
            slots[RAW_LOSS] = value = loss.item()
            if slots[LOSS] is None:
                slots[LOSS] = weighted(value, slots[WEIGHT])
        elif slots[LOSS] is None:
            slots[LOSS] = 0.0
        slots[SAMPLE] = sample.item()
        self._array[:SLOTS] = array(self._code, slots)  # type: ignore[arg-type]
        self._array[SLOTS:] = (
            self._everything if all(present) else array(self._code, self._parts(present))
        )
        return self.seed

    def _parts(self, present: Sequence[bool]) -> Sequence[float]:
        """Return this rank's part in the gradient of each parameter."""
        dropped, self.dropped = self.dropped, ()
        return [UNCOUNTED * each for each in dropped] if dropped else present

    def complete(self, loss: Tensor | None, sample: Tensor, present: Sequence[bool]) -> Tensor:
        """Complete this rank's metadata after the graph has run, and return it.

        The header reads the means over ranks from the same tensor.
        """
        self.fill(loss, sample, present)
        return self._gradient

    def receive(self) -> list[float]:
        """Return the means, and compare them with what this rank has sent."""
        mean = self.mean()
        self.agrees = matches(mean, self.slots)
        return mean

    def mean(self) -> list[float]:
        """Return the means of all slots over ranks."""
        return self._array[:SLOTS].tolist()

    def reached(self) -> list[float]:
        """Return, for each parameter, the fraction of ranks that had a gradient."""
        return self._array[SLOTS:].tolist()

    def unreached(self) -> list[bool]:
        """Return, for each parameter, whether no rank had a gradient.

        Gradients of ranks whose samples do not count matter only if no sample of the batch counts.
        """
        below = SOME if self.mean()[WEIGHT] else 0.0
        return [part <= below for part in self.reached()]

    def counts(self) -> list[float]:
        """Return the means over ranks of the slots that say what the losses count."""
        return self._array[NUM_BASIC:SLOTS].tolist()

    def give_loss(self, loss: Tensor, scale: Number) -> None:
        """Write the loss over all ranks into the tensor that ``backward`` was called on."""
        loss.data.fill_(self._array[LOSS] * scale)

    def give_parts(self, parts: Sequence[Part], scale: Number) -> None:
        """Write into each part its value over all ranks, if all have the same parts."""
        kind = self.slots[KIND]
        if equal_on_all_ranks(cast("float", kind), self._array[KIND], self._array[KIND_SQUARED]):
            for slot, part in enumerate(parts, FIRST_PART):
                part.tensor.data.fill_(self._array[slot] * part.scale(scale))


class DeviceHeader(Header):
    """The header on a GPU, without a wait: the loss and the sample are copied on the device."""

    def __init__(self, parameters: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(parameters, dtype)
        self.parameter = nn.Parameter(self.parameter.data.to(device))
        self.seed = self.seed.to(device)
        self.sent = self.seed

    def begin(self, slots: Slots) -> None:
        self.slots = slots
        self.parameter.grad = None

    def fill(self, loss: Tensor | None, sample: Tensor, present: Sequence[bool]) -> Tensor:
        there = {slot: value for slot, value in enumerate(self.slots) if isinstance(value, Tensor)}
        known = [
            0.0 if slot in there or value is None else value
            for slot, value in enumerate(self.slots)
        ]
        numbers = torch.tensor([*known, *map(float, self._parts(present))], dtype=self.seed.dtype)
        self.sent = accelerators.sent(numbers, self.seed.device)
        self.sent[SAMPLE] = sample
        for slot, value in there.items():
            self.sent[slot] = value
        if loss is not None:
            self.sent[RAW_LOSS] = loss.detach()
            if self.slots[LOSS] is None:
                self.sent[LOSS] = weighted(loss.detach(), self.slots[WEIGHT])
        return self.sent

    def complete(self, loss: Tensor | None, sample: Tensor, present: Sequence[bool]) -> Tensor:
        self.parameter.grad = reported = self.fill(loss, sample, present).clone()
        return reported

    def receive(self) -> list[float]:
        """Return an empty list, because the host would have to wait for the means."""
        self.agrees = False
        return []

    def counts(self) -> list[float]:
        return self._mean()[NUM_BASIC:SLOTS].tolist()

    def counts_there(self) -> Tensor:
        """Return ``counts`` on the device, without waiting. Shape (terms.SLOTS,)."""
        return self._mean()[NUM_BASIC:SLOTS]

    def mean(self) -> list[float]:
        return self._mean()[:SLOTS].tolist()

    def reached(self) -> list[float]:
        return self._mean()[SLOTS:].tolist()

    def give_loss(self, loss: Tensor, scale: Number) -> None:
        loss.data.copy_(self._mean()[LOSS] * scale)

    def give_parts(self, parts: Sequence[Part], scale: Number) -> None:
        mean, kind = self._mean(), cast("float", self.slots[KIND])
        differ = (mean[KIND] - kind).abs() + (mean[KIND_SQUARED] - kind * kind).abs()
        for slot, part in enumerate(parts, FIRST_PART):
            value = part.tensor.data
            value.copy_(torch.where(differ < 0.25, mean[slot] * part.scale(scale), value))

    def both(self) -> Tensor:
        """Return the means, and what this rank has sent. Shape (2, SLOTS)."""
        return torch.stack([self._mean()[:SLOTS], self.sent[:SLOTS]])

    def _mean(self) -> Tensor:
        mean = self.parameter.grad
        assert mean is not None
        return mean


def make_header(first: Tensor, parameters: int) -> Header:
    """Return a header for ``parameters`` parameters, on the device of the first one.

    Its dtype is that of ``first``, or of its real part, if that is float32 or float64. Otherwise it
    is float32.
    """
    real = first.dtype.to_real()
    dtype = real if real in (torch.float32, torch.float64) else torch.float32
    return (
        Header(parameters, dtype)
        if first.device.type == "cpu"
        else DeviceHeader(parameters, dtype, first.device)
    )


def first_number(tensor: Tensor) -> Tensor:
    """Return the first element of a detached tensor of any shape, as a tensor without dimensions.

    A complex element becomes the sum of its two parts.
    """
    first = tensor[(0,) * tensor.dim()]
    return first.real + first.imag if first.is_complex() else first


def matches(mean: Sequence[float], sent: Sequence[Number | None]) -> bool:
    """Whether all ranks gave the same progress, position, constants and shapes, digit for digit.

    If they did not, they may still agree up to rounding.
    """
    return (
        mean[PROGRESS:INPUT] == sent[PROGRESS:INPUT]
        and mean[CONSTANTS:KIND] == sent[CONSTANTS:KIND]
    )


def agrees(mean: Sequence[float], sent: Sequence[float]) -> bool:
    """Whether all ranks gave the same progress and position."""
    return equal_on_all_ranks(
        sent[PROGRESS], mean[PROGRESS], mean[PROGRESS_SQUARED]
    ) and equal_on_all_ranks(sent[POSITION], mean[POSITION], mean[POSITION_SQUARED])


def constants_agree(mean: Sequence[float], sent: Sequence[float]) -> bool:
    """Whether all ranks gave the same checksum of constants."""
    return equal_on_all_ranks(sent[CONSTANTS], mean[CONSTANTS], mean[CONSTANTS_SQUARED])


def buffers_agree(mean: Sequence[float], sent: Sequence[Number | None]) -> bool:
    """Whether all ranks gave the same checksum of their buffers' shapes."""
    mine = cast("float", sent[BUFFERS])
    return equal_on_all_ranks(mine, mean[BUFFERS], mean[BUFFERS_SQUARED])


def drifted(mean: Sequence[float], sent: Sequence[float]) -> bool:
    """Whether the sampled parameter differs between ranks by more than rounding."""
    return abs(mean[SAMPLE] - sent[SAMPLE]) > 1e-4 * abs(sent[SAMPLE]) + 1e-30
