"""Values other than numbers for trackers: pictures, histograms, tables, hyperparameters."""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torchbus.plugin import UsageError, an

from torchbus_redaction.redactor import Redactor

if TYPE_CHECKING:
    from torchbus.plugin import Context


MOST_BINS = 512


class Histogram(NamedTuple):
    """Counts of equal bins between the least and the greatest finite value.

    ``counts`` has a number for each bin. A value on the border of two bins is counted in the right
    bin. ``edges`` are the ascending borders, one more than there are bins. ``sum`` and
    ``sum_squares`` are sums over the finite values. ``not_finite`` is the number of values that are
    NaN or infinite, which are in no bin.
    """

    counts: list[float]
    edges: list[float]
    sum: float
    sum_squares: float
    not_finite: int


class Values:
    """Values of a histogram, on any device.

    ``values`` is a tensor or an array of real numbers, of any shape. ``bins`` is 1 to 512. Raises
    UsageError for other types. The constructor does not read the values or wait for a device.
    """

    def __init__(self, name: str, values: object, bins: int) -> None:
        if not isinstance(bins, int) or isinstance(bins, bool) or not 1 <= bins <= MOST_BINS:
            raise UsageError(
                f"s.log_histogram({name!r}, bins={bins!r}): it must be a whole number from 1 to"
                f" {MOST_BINS}"
            )
        self._numbers = _numbers(name, values)
        self._bins = bins
        self._counted: Histogram | None = None

    def counted(self) -> Histogram:
        """Count the values on their device. This waits for the device."""
        if self._counted is None:
            self._counted = _counted(self._numbers, self._bins)
        return self._counted


def _counted(every: Tensor, bins: int) -> Histogram:
    finite = every[every.isfinite()]
    lost = every.numel() - finite.numel()
    if not finite.numel():
        return Histogram([0.0] * bins, [float(edge) for edge in range(bins + 1)], 0.0, 0.0, lost)
    low, high = (float(one) for one in torch.aminmax(finite))
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    counts = torch.histc(finite, bins, low, high).tolist()
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64).tolist()
    total, squares = torch.stack([finite.sum(), finite.square().sum()]).tolist()
    return Histogram(counts, edges, total, squares, lost)


def _numbers(name: str, values: object) -> Tensor:
    """Return the values as a tensor of one dimension, in float64 if they are, or else float32."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (RuntimeError, TypeError, ValueError):
        tensor = None
    if tensor is None or tensor.is_complex():
        reported = an(type(values).__name__) if tensor is None else str(tensor.dtype)
        raise UsageError(
            f"s.log_histogram({name!r}): {reported} is neither a tensor nor an array of real"
            " numbers. Pass one, such as torch.tensor(values)"
        )
    flat = tensor.detach().flatten()
    return flat if flat.dtype is torch.float64 else flat.float()


COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""The colour types of PNG (grey, RGB and RGBA) by the number of channels."""


class Image:
    """A picture, on any device.

    ``value`` is a tensor (height, width) or (channels, height, width), as in torchvision, or an
    array (height, width) or (height, width, channels), as in NumPy and PIL. There are 1, 3 or 4
    channels. Floats are in [0, 1]; whole numbers are uint8.

    Raises UsageError for other shapes and types. The constructor does not read the values or wait
    for a device.
    """

    def __init__(self, name: str, value: object) -> None:
        is_tensor = isinstance(value, Tensor)
        tensor = value.detach() if isinstance(value, Tensor) else _from_array(name, value)
        channels_at = 0 if is_tensor else -1
        shape = tuple(tensor.shape)
        if tensor.dim() == 2:
            tensor, channels_at = tensor.unsqueeze(0), 0
        if tensor.dim() != 3 or tensor.shape[channels_at] not in COLOUR_TYPES or not tensor.numel():
            raise UsageError(
                f"s.log_image({name!r}): its shape is {shape}, but it must be one"
                f" picture: {_layout(is_tensor)}. Of a batch, pass one, or a grid such as"
                " torchvision.utils.make_grid(images)"
            )
        if not (tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.bool)):
            raise UsageError(
                f"s.log_image({name!r}): its values are {tensor.dtype}: pass floats in [0, 1], or"
                " uint8"
            )
        self._tensor = tensor.movedim(channels_at, -1)
        self._pixels: Tensor | None = None

    def pixels(self) -> Tensor:
        """Return a copy on the host: uint8, (height, width, channels). Waits for the device."""
        if self._pixels is None:
            found = self._tensor
            if found.is_floating_point():
                found = found.float().nan_to_num(0.0).clamp(0.0, 1.0).mul(255.0).round()
            elif found.dtype is torch.bool:
                found = found.to(torch.uint8) * 255
            self._pixels = found.to("cpu", torch.uint8, copy=True).contiguous()
        return self._pixels

    def rgb(self) -> Tensor:
        """Return the pixels as uint8 (height, width, 3): grey as RGB, and without transparency."""
        return self.pixels()[..., :3].expand(-1, -1, 3).contiguous()

    def png(self) -> bytes:
        """Return the picture as a PNG file. Source: https://www.w3.org/TR/png-3/"""
        height, width, channels = self.pixels().shape
        rows = self.pixels().view(height, width * channels)
        filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1)  # 0: no filter
        head = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
        data = zlib.compress(bytes(filtered.flatten().tolist()), 1)
        parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", data), _chunk(b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _from_array(name: str, value: object) -> Tensor:
    """Convert a NumPy array, or an object that NumPy can convert, such as a PIL image."""
    try:
        import numpy

        return torch.from_numpy(numpy.array(value))
    except (ImportError, TypeError, ValueError) as error:
        raise UsageError(
            f"s.log_image({name!r}): {an(type(value).__name__)} is not a picture: pass a tensor, a"
            " NumPy array or an image of PIL. Of a figure, pass"
            " numpy.asarray(figure.canvas.buffer_rgba())"
        ) from error


def _layout(is_tensor: bool) -> str:
    """Describe the shapes that a picture may have."""
    if is_tensor:
        return "a tensor (height, width) or (channels, height, width), with 1, 3 or 4 channels"
    return "an array (height, width) or (height, width, channels), with 1, 3 or 4 channels"


@dataclass(frozen=True)
class LoggedTable:
    """Names of columns, and rows of texts and numbers.

    ``plot`` names two columns of numbers, x and y, if the table is better shown as a curve.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    plot: tuple[str, str] | None = None


def table_of(values: Tensor) -> LoggedTable:
    """Return a tensor with 1 dimension as numbered rows, or with 2 as numbered rows and columns."""
    rows = values.tolist() if values.dim() == 2 else [[one] for one in values.tolist()]
    heads = map(str, range(values.shape[1])) if values.dim() == 2 else ("value",)
    return LoggedTable(("row", *heads), tuple((place, *row) for place, row in enumerate(rows)))


def describe_run(session: Context) -> dict[str, Any]:
    """Describe where, when and how a session runs, for a run's configuration."""
    from torchbus import __version__

    plugins = session.bus.plugins()
    strategies = [name for name, one in plugins if "strategy" in getattr(one, "owns", ())]
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": session.redactor.command_line(sys.orig_argv),
        "strategy": next(iter(strategies), None),
        "world_size": session.world_size,
        "device": str(session.device),
        "torchbus": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "options": session.redactor.plain(
            {name: _option(name, value) for name, value in session.options.items()}
        ),
    }


def plain(value: object) -> Any:
    """Return a value in the types of JSON, without secrets.

    If you have a session, use its ``redactor.plain``, which knows more secrets.
    """
    return Redactor().plain(value)


def without_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """Return a text without these secrets, and without those of environment and command line."""
    return Redactor(secrets).text(text)


def _option(name: str, value: object) -> object:
    """Return an option. A plugin becomes its class's name, as its arguments may be secret."""
    if isinstance(value, list | tuple):
        return [_option(name, item) for item in value]
    known = value is None or isinstance(value, str | bool | Real | Mapping | os.PathLike)
    return value if known else type(value).__name__
