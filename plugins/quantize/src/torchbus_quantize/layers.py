"""A linear layer with a quantised, frozen weight."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torchbus.plugin import Unsupported, UsageError

from torchbus_quantize import libraries
from torchbus_quantize._compat import LoadingLinear


class Form(NamedTuple):
    """The encoding of a quantised weight. ``settings`` are the library's."""

    name: str
    library: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[TensorSlot, ...]
    settings: Any

    def head(self) -> bytes:
        """Return the header of the bytes, which identifies the encoding."""
        return f"{self.name}:{crc32(repr(self[:-1]).encode()):08x}".encode().ljust(HEAD, b"\0")

    def values(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the dequantised weight, of the original shape, in this dtype."""
        tensors = unpack(packed, self.parts)
        return libraries.load(self.library).dequantise(tensors, self.settings).to(dtype)


class QuantizedLinear(LoadingLinear):
    """``nn.Linear`` with a frozen, quantised weight. Its ``weight`` is a parameter of bytes."""

    quantized: Form

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        apply: Any = _Linear.apply
        output: Tensor = apply(input, self.weight, self.quantized)
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def extra_repr(self) -> str:
        form = self.quantized
        return f"{super().extra_repr()}, quantized={form.name!r} by {form.library}"

    def before_load(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Quantise a float weight. Raises UsageError for bytes of another encoding."""
        given = state_dict.get(f"{prefix}weight")
        if not isinstance(given, Tensor):
            return
        if given.is_floating_point() and tuple(given.shape) == self.quantized.shape:
            weight = given.to(self.weight.device, self.quantized.dtype)
            state_dict[f"{prefix}weight"] = quantised(
                weight, self.quantized.name, self.quantized.library
            )[0]
        elif given.dtype == torch.uint8 and head_of(given) != self.quantized.head():
            form = self.quantized
            raise UsageError(
                f"load_state_dict: {prefix}weight was quantised differently from here, where it is"
                f" {form.name!r} by {form.library}, of {_size(form)}: load it with the quantize="
                " and quantize_library= with which it was saved"
            )


class _Linear(torch.autograd.Function):
    """Saves the quantised bytes for backward, and dequantises the weight in both passes."""

    @staticmethod
    def forward(input: Tensor, packed: Tensor, form: Form) -> Tensor:
        return F.linear(input, form.values(packed, input.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Form], output: Tensor) -> None:
        _, packed, ctx.form = inputs
        ctx.save_for_backward(packed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (packed,) = ctx.saved_tensors
        return gradient @ ctx.form.values(packed, gradient.dtype), None, None


@torch.no_grad()
def quantised(weight: Tensor, name: str, library: str) -> tuple[Tensor, Form]:
    """Return the bytes of a weight, of shape (bytes,) and dtype uint8, and their encoding."""
    tensors, settings = libraries.load(library).quantise(name, weight)
    form = Form(name, library, tuple(weight.shape), weight.dtype, layout(tensors), settings)
    return pack(tensors, form.parts, form.head()), form


def quantize_layer(layer: nn.Linear, name: str, library: str) -> None:
    """Quantise a layer in place. Its weight stays the same object, with other data."""
    packed, form = quantised(layer.weight.detach(), name, library)
    layer.weight.data = packed
    layer.__class__ = QuantizedLinear
    assert isinstance(layer, QuantizedLinear)
    layer.quantized = form


@torch.no_grad()
def dequantize(model: Module) -> None:
    """Turn the quantised layers of a model into plain ``nn.Linear`` layers, in place.

    The weights keep the rounded values, in the dtype from before, and stay frozen. Call it after
    the block, for example before you merge adapters. Raises Unsupported if ranks share a weight.
    """
    for path, layer in model.named_modules():
        if not isinstance(layer, QuantizedLinear):
            continue
        if isinstance(layer.weight, DTensor):
            raise Unsupported(
                f"dequantize: {path or 'the layer'}.weight is divided over ranks; call it after the"
                " block"
            )
        form = layer.quantized
        layer.weight.data = form.values(layer.weight.data, form.dtype)
        del layer.quantized
        plain: nn.Linear = layer
        plain.__class__ = nn.Linear


def _size(form: Form) -> str:
    return f"shape {form.shape} in {str(form.dtype).removeprefix('torch.')}"


ALIGNED = 16
HEAD = 16


class TensorSlot(NamedTuple):
    """The place of one tensor in the bytes of a quantised weight."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        return self.start + prod(self.shape) * self.dtype.itemsize


def layout(tensors: Mapping[str, Tensor]) -> tuple[TensorSlot, ...]:
    """Return the place of each tensor in the bytes. Each is aligned for every dtype."""
    parts: list[TensorSlot] = []
    start = HEAD
    for name, tensor in tensors.items():
        parts.append(TensorSlot(name, tensor.dtype, tuple(tensor.shape), start))
        start = -(-parts[-1].end // ALIGNED) * ALIGNED
    return tuple(parts)


def pack(tensors: Mapping[str, Tensor], parts: tuple[TensorSlot, ...], head: bytes) -> Tensor:
    first = next(iter(tensors.values()))
    packed = torch.zeros(parts[-1].end, dtype=torch.uint8, device=first.device)
    packed[: len(head)] = torch.tensor(list(head), dtype=torch.uint8, device=first.device)
    for name, place in unpack(packed, parts).items():
        place.copy_(tensors[name])
    return packed


def unpack(packed: Tensor, parts: tuple[TensorSlot, ...]) -> dict[str, Tensor]:
    """Return the tensors by name, as views of the bytes."""
    return {
        part.name: packed[part.start : part.end].view(part.dtype).view(part.shape) for part in parts
    }


def head_of(packed: Tensor) -> bytes:
    return bytes(packed[:HEAD].tolist())
