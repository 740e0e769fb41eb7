"""A picture that the loop has logged."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

from torchbus.errors import UsageError

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""Of PNG: grey, RGB and RGBA, by the number of channels."""


class Image:
    """A picture, on whatever device it is.

    ``value``: a tensor (height, width) or (channels, height, width), as torchvision has it; or an
    array (height, width) or (height, width, channels), as NumPy and PIL have it. Channels are 1, 3
    or 4. Floats are in [0, 1]; whole numbers are uint8.

    Raises UsageError for other shapes and types. The values are not read: nothing waits for a
    device.
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
        """Return the pixels with three channels: grey as RGB, and without transparency."""
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
    """A NumPy array, or what NumPy takes for one, such as a picture of PIL."""
    try:
        import numpy

        return torch.from_numpy(numpy.array(value))
    except (ImportError, TypeError, ValueError) as error:
        raise UsageError(
            f"s.log_image({name!r}): a {type(value).__name__} is no picture: pass a tensor, a NumPy"
            " array or an image of PIL. Of a figure, pass"
            " numpy.asarray(figure.canvas.buffer_rgba())"
        ) from error


def _layout(is_tensor: bool) -> str:
    """What a picture of three dimensions must be like."""
    if is_tensor:
        return "a tensor (height, width) or (channels, height, width), with 1, 3 or 4 channels"
    return "an array (height, width) or (height, width, channels), with 1, 3 or 4 channels"
