"""Writes and reads safetensors files: a value's tensors, and the rest as JSON in the header.

Every reader of safetensors finds each tensor by its path in the value, such as ``0.weight`` or
``optimizers/0/state/state/1``.
"""

from __future__ import annotations

import ctypes
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torchbus.plugin import UsageError, an

from torchbus_checkpoint._compat import sparse_parts
from torchbus_checkpoint.state.jsonable import from_json, read_json, to_json

NAME = "torchbus"
LONGEST_HEADER = 100_000_000  # the most bytes that readers of safetensors accept
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Tensors of any other dtype are written as bytes, and the header has their dtype."""


class Spec(NamedTuple):
    """The name, memory layout, dtype and shape of a tensor in a file.

    ``order`` has its dimensions in the order of memory, or None for a contiguous tensor. ``dtype``
    and ``shape`` are set only for a tensor that is written as bytes.
    """

    name: str
    order: list[int] | None = None
    dtype: str | None = None
    shape: list[int] | None = None

    def of(self, numbers: Tensor) -> Tensor:
        """Convert a tensor of the file to its original dtype and shape."""
        if self.dtype is None:
            return numbers
        dtype = vars(torch).get(self.dtype)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"torch.{self.dtype} is not a dtype")
        return numbers.view(dtype).reshape(self.shape or [])


# Write -------------------------------------------------------------------------------------------


def write(content: object, file: IO[bytes], once: bool = True) -> None:
    """Write a value. Tensors on other devices are copied one at a time.

    With ``once``, a tensor that occurs twice in the value is written once. Raises UsageError for a
    value that can't be written.
    """
    names = _Names(once)
    text = json.dumps(names.described(content, ""))
    header: dict[str, object] = {"__metadata__": {"format": "pt", NAME: text}}
    tensors = sorted(names.tensors.items(), key=lambda item: -item[1].element_size())
    place = 0
    for name, tensor in tensors:
        end = place + _num_bytes(tensor)
        code, shape = CODES.get(tensor.dtype), list(tensor.shape)
        if code is None:
            code, shape = "U8", [end - place]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [place, end]}
        place = end
    data = json.dumps(header).encode()
    if len(data) > LONGEST_HEADER - 8:
        raise UsageError(
            f"a state with {len(data)} bytes that are not tensors, and a checkpoint holds at most"
            f" {LONGEST_HEADER} for each of its files: keep them in a tensor or an array"
        )
    data += b" " * (-len(data) % 8)
    file.write(len(data).to_bytes(8, "little") + data)
    for _, tensor in tensors:
        _write_numbers(tensor, file)


def _write_numbers(tensor: Tensor, file: IO[bytes]) -> None:
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    file.write(_memory(whole))


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _memory(tensor: Tensor) -> memoryview:
    """Return a view of a tensor's memory. The tensor must stay alive as long as the view."""
    num_bytes = _num_bytes(tensor)
    if not num_bytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr())).cast("B")


class _Names:
    """The tensors of a value by name, and the value without them."""

    def __init__(self, once: bool) -> None:
        self._once = once
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def described(self, value: object, path: str) -> object:
        """Return the value in the types of JSON. ``path`` is its place in the whole value."""
        if isinstance(value, Tensor):
            return self._noted(value, path)
        inside = f"{path}/" if path else ""
        if type(value) is list:
            return [self.described(one, f"{inside}{index}") for index, one in enumerate(value)]
        if isinstance(value, dict):
            kind = type(value).__name__
            pairs = [
                [to_json(key, _refuse), self.described(one, f"{inside}{key}")]
                for key, one in value.items()
            ]
            return {kind: pairs}
        if type(value) is tuple:
            items = enumerate(value)
            return {"tuple": [self.described(one, f"{inside}{index}") for index, one in items]}
        return to_json(value, _refuse)

    def _noted(self, tensor: Tensor, path: str) -> object:
        if tensor.layout is torch.sparse_coo:
            parts = enumerate(sparse_parts(tensor))
            found = [self._noted(one, f"{path}/{index}") for index, one in parts]
            return {"sparse": [*found, list(tensor.shape), tensor.is_coalesced()]}
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise UsageError(
                f"a tensor with {tensor.layout} on {tensor.device} of {tensor.dtype}, which a"
                f" checkpoint can't hold ({path}): convert it in state_dict()"
            )
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        name = self._known.get(key) if tensor.numel() and self._once else None
        if name is None:
            name = self._free(path)
            self.tensors[name] = tensor
            self._known[key] = name
        return {"tensor": _spec(name, tensor)}

    def _free(self, path: str) -> str:
        name = path or "it"
        while name in self.tensors or name == "__metadata__":
            name += "~"
        return name


def _spec(name: str, tensor: Tensor) -> Spec:
    order = None
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
    if tensor.dtype in CODES:
        return Spec(name, order)
    return Spec(name, order, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))


def _refuse(value: object) -> object:
    raise UsageError(
        f"a checkpoint can't hold {an(f'{type(value).__module__}.{type(value).__name__}')}: let"
        " state_dict() return tensors, numbers, strings, and lists and dicts of them instead"
    )


# Read --------------------------------------------------------------------------------------------


class UntrustedFile:
    """Reads an untrusted file, without running code from it.

    Raises ValueError, TypeError, LookupError or RuntimeError for content that ``write`` does not
    produce.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = cast(io.BufferedReader, file)
        self._header = cast(Any, safe_open(f"/dev/fd/{file.fileno()}", "pt"))
        self._empty: dict[str, Tensor] = {}
        self._starts: dict[str, int] = {}
        file.seek(0)
        self._start = 8 + int.from_bytes(file.read(8), "little")
        names: list[str] = self._header.offset_keys()
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        part = self._header.get_slice(name)
        dtype = next((one for one, code in CODES.items() if code == part.get_dtype()), None)
        if dtype is None:
            raise ValueError(f"{name} is of type {part.get_dtype()}")
        found = self._empty[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
        self._starts[name] = self._start
        self._start += _num_bytes(found)

    def content(self, tensor: Callable[[Spec], Any] | None = None) -> Any:
        """Return the value, with the results of ``tensor`` as its tensors (default: read them)."""
        text = (self._header.metadata() or {}).get(NAME)
        if text is None:
            raise ValueError(f"it has no {NAME!r} in its header")
        try:
            return from_json(read_json(text), _Once({*self._empty}, tensor or self.tensor))
        except RecursionError:
            raise ValueError("it is too deep") from None

    def tensor(self, spec: Spec) -> Tensor:
        """Read a tensor into main memory, with its original dtype, shape and memory layout."""
        found = torch.empty_like(self._empty[spec.name], device="cpu")
        self._file.seek(self._starts[spec.name])
        if self._file.readinto(_memory(found)) != _num_bytes(found):
            raise ValueError("it has become shorter")
        found = spec.of(found)
        if spec.order is not None:
            back = sorted(range(found.dim()), key=spec.order.__getitem__)
            found = found.permute(spec.order).contiguous().permute(back)
        return found

    def empty(self, spec: Spec) -> Tensor:
        """Return a tensor of the right dtype and shape on the meta device."""
        return spec.of(self._empty[spec.name])


class _Once:
    """Makes each tensor of a file only once, so that a small file can't fill the memory."""

    def __init__(self, names: set[str], make: Callable[[Spec], Any]) -> None:
        self._names, self._make = names, make
        self._made: dict[str, tuple[Spec, Any]] = {}

    def __call__(self, kind: str, content: Any) -> Any:
        if kind == "tensor":
            return self._single(Spec(*content))
        if kind != "sparse":
            raise ValueError(f"{an(kind)} in it")
        indices, values, shape, is_coalesced = content
        return torch.sparse_coo_tensor(
            from_json(indices, self),
            from_json(values, self),
            shape,
            is_coalesced=is_coalesced,
            check_invariants=True,
        )

    def _single(self, spec: Spec) -> Any:
        if spec.name not in self._names:
            raise ValueError(f"it has no tensor {spec.name!r}")
        if spec.name not in self._made:
            self._made[spec.name] = (spec, self._make(spec))
        known, found = self._made[spec.name]
        if known != spec:
            raise ValueError(f"it has two forms of {spec.name!r}")
        return found


@contextmanager
def reading(file: IO[bytes]) -> Iterator[UntrustedFile]:
    """Yield a reader. Errors of the library become ValueErrors."""
    try:
        yield UntrustedFile(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
