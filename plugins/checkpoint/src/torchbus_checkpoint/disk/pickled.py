"""Reads files of formats 1 and 2, which are pickles. torch's own reader reads tensors. It makes
only tensors and plain values, and is called only after the zip around them is checked.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from typing import IO, Any, NamedTuple, cast

import torch
from torch import Tensor
from torchbus.plugin import an

from torchbus_checkpoint._compat import LAYOUT, num_bytes_of, sparse_parts
from torchbus_checkpoint.disk.divided import DividedTensor, TensorPart, numbers

INDEX = ".metadata"
OF_DCP = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
PLAIN = {("torch", "Size"): tuple, ("collections", "OrderedDict"): dict}
OTHERS = {
    LAYOUT,
    ("builtins", "getattr"),  # Python 3.11.0 to 3.11.3 write members of an enumeration with it
    *(
        (module, kind)
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "WindowsPath")
    ),
}
ENCODE = "_codecs encode"
KNOWN = {
    ENCODE,
    " ".join(LAYOUT),
    "torch.storage UntypedStorage",
    *(f"torch {name}" for name in ("Size", "device")),
    *(f"collections {name}" for name in ("OrderedDict", "Counter")),
    *(f"{module} {name}" for module in ("builtins", "__builtin__") for name in ("set", "complex")),
    *(
        f"torch._utils _rebuild_{name}"
        for name in (
            "tensor",
            "tensor_v2",
            "tensor_v3",
            "parameter",
            "qtensor",
            "sparse_tensor",
            "meta_tensor_no_storage",
        )
    ),
}
CHANGING = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD", "DUP"}
GROWING = {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "LIST", "DICT"}
CALLING = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD"}
MOST_ITEMS, MOST_TIMES, MOST_LARGE, DEEPEST = 1 << 20, 4, 10_000, 500


def read(file: IO[bytes]) -> Any:
    """Read a file of ``torch.save``. Raises ValueError for a zip that torch would not write."""
    _refuse_odd_zip(file)
    with torch.sparse.check_sparse_tensor_invariants():  # an index may be out of bounds
        found = torch.load(file, map_location="cpu", weights_only=True)
    _refuse_blown_up(found, file.seek(0, 2))
    return found


def _refuse_odd_zip(file: IO[bytes]) -> None:
    """Check that the entries are not larger in memory than in the file, alone or together.

    Also check that torch, which reads the file with another library, finds the same pickles in it.
    """
    try:
        _refuse_two_directories(file)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _refuse_odd_entries(entries, file.seek(0, 2))
            sizes = {_place_in(one): one.file_size for one in entries}
            texts = [archive.read(one) for one in entries if _place_in(one).endswith(".pkl")]
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it is not a file of torch.save: {error}") from None
    for text in texts:
        _refuse_unknown(_refuse_slow(text))
        _Storages(text, sizes).load()
    file.seek(0)


def _place_in(entry: zipfile.ZipInfo) -> str:
    """Return an entry's name as torch compares it: without the folder, and in small letters."""
    return entry.orig_filename.partition("/")[2].lower()


def _refuse_odd_entries(entries: list[zipfile.ZipInfo], num_bytes: int) -> None:
    """Check the entries of a zip of this size, before any of them is read."""
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename!r} in it is compressed")
    if sum(entry.file_size for entry in entries) > num_bytes:
        raise ValueError("the entries in it overlap")
    if len({*map(_place_in, entries)}) < len(entries):
        raise ValueError("two entries in it have one name")


def _refuse_two_directories(file: IO[bytes]) -> None:
    """Check that a zip fills the whole file, and that its directory is where the zip says.

    In any other file Python's and torch's readers may find different entries.
    """
    size = file.seek(0, 2)
    file.seek(0)
    start = file.read(4)
    file.seek(max(0, size - 98))
    tail = file.read().rjust(98, b"\0")
    large, locator, end = tail[:56], tail[56:76], tail[76:]
    place, length = int.from_bytes(end[16:20], "little"), int.from_bytes(end[12:16], "little")
    closed = size - 22
    if locator.startswith(b"PK\6\7"):
        closed = size - 98
        if int.from_bytes(locator[8:16], "little") != closed or large[:4] != b"PK\6\6":
            raise zipfile.BadZipFile("its directory is elsewhere")
        place = int.from_bytes(large[48:], "little")
        length = int.from_bytes(large[40:48], "little")
    if start != b"PK\3\4" or end[:4] != b"PK\5\6" or end[20:] != b"\0\0":
        raise zipfile.BadZipFile("it does not begin and end as a zip")
    if place + length != closed:
        raise zipfile.BadZipFile("its directory is elsewhere")


def _refuse_slow(data: bytes) -> set[str]:
    """Limit what a pickle of this size may ask for, before it is read. Return the names it calls.

    A few bytes could ask for memory for billions of objects, or for a key that is a tuple of tuples
    of tuples, whose hash takes years or crashes the process, or for many large numbers with one
    hash. Each call may also copy its arguments.
    """
    stack: list[_Made | None] = []  # None: a mark
    memo: dict[int, _Made] = {}
    names, large, copied, most = set[str](), 0, 0, MOST_ITEMS + MOST_TIMES * len(data)
    for code, argument, _ in pickletools.genops(data):
        if "PUT" in code.name or code.name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]  # type: ignore[assignment]
            continue
        large += isinstance(argument, int) and argument.bit_length() > 64
        popped = _popped(code, stack)
        made = memo[argument] if "GET" in code.name else _made(code, argument, popped)  # type: ignore[index]
        copied += sum(one.num_copied() for one in popped[1:]) if code.name in CALLING else 0
        if max(made.count, copied) > most or made.depth > DEEPEST or large > MOST_LARGE:
            raise ValueError("it holds more than the file has room for")
        if code.name == "GLOBAL":
            names.add(str(argument))
        stack += [None if one is pickletools.markobject else made for one in code.stack_after]
    if any(number > len(data) for number in memo):
        raise ValueError(f"{max(memo)} objects in {len(data)} bytes")
    return names


class _Made:
    """A value of a pickle: the number of values in it (``count``) and its ``depth``.

    ``width`` is the number of values directly in it. ``text`` is the value if it is a text, or the
    two texts of a pair. ``growing`` has the parts that may grow later, and ``fixed`` is the sum of
    the widths of the other parts.
    """

    __slots__ = ("count", "depth", "fixed", "growing", "grows", "text", "width")

    def __init__(self, parts: list[_Made], text: object = None, grows: bool = False) -> None:
        self.count, self.depth, self.text, self.grows = 1, 0, text, grows
        self.width, self.fixed = len(text) if isinstance(text, str) else 0, 0
        self.growing: list[_Made] | None = None
        self.add(parts)

    def add(self, parts: list[_Made]) -> None:
        self.count += sum(one.count for one in parts)
        self.depth = max([self.depth, *(1 + one.depth for one in parts)])
        self.width += len(parts)
        for one in parts:
            if one.grows:
                self.growing = [] if self.growing is None else self.growing
                self.growing.append(one)
            elif not (self.grows and isinstance(one.text, str)):
                self.fixed += one.width

    def num_copied(self) -> int:
        """Return how many items and letters a function with this argument may copy."""
        return self.width + self.fixed + sum(one.width for one in self.growing or ())


ONE = _Made([])


def _made(code: pickletools.OpcodeInfo, argument: object, popped: list[_Made]) -> _Made:
    """Return the value that an instruction makes of others, or the value that it changes."""
    if code.name in CHANGING:
        popped[0].add(popped[1:])
        return popped[0]
    if code.name == "REDUCE" and popped[0].text == ENCODE:
        _, codec = cast(tuple[object, object], popped[1].text)
        if codec != "latin1":  # other codecs may make more bytes than the text has letters
            raise pickle.UnpicklingError(f"{ENCODE} {codec}")
    grows = code.name in GROWING | CALLING
    if not (popped or grows or isinstance(argument, str)):
        return ONE
    pair = tuple(one.text for one in popped) if code.name == "TUPLE2" else None
    return _Made(popped, pair or argument, grows)


def _refuse_unknown(names: set[str]) -> None:
    """Refuse classes and functions that torch accepts but that torchbus never writes."""
    for name in names - KNOWN:
        module, _, kind = name.partition(" ")
        of_torch = isinstance(
            getattr(torch, kind, None), torch.dtype | torch.layout | torch.qscheme
        )
        if module != "torch" or not (of_torch or kind.endswith("Storage")):
            raise pickle.UnpicklingError(f"{module}.{kind}")


def _popped(code: pickletools.OpcodeInfo, stack: list[_Made | None]) -> list[_Made]:
    """Pop the values that an instruction uses from the stack."""
    before = code.stack_before
    start = len(stack) - len(before)
    if pickletools.markobject in before:
        mark = len(stack) - 1
        while stack[mark] is not None:  # a search of the whole stack for each mark would take hours
            mark -= 1
        start = mark - before.index(pickletools.markobject)
    popped = stack[start:]
    del stack[start:]
    return [one for one in popped if one is not None]


def _refuse_blown_up(value: object, num_bytes: int) -> None:
    """Limit the size of the value that a file of this size may contain.

    A few bytes of pickle could refer to earlier parts again and again, or make a tensor that
    repeats its numbers, or has more numbers than the file.
    """
    left, count, seen = [value], 0, set[object]()
    while left:
        one = left.pop()
        count += 1
        if isinstance(one, Tensor):
            if one.layout is torch.strided:
                count += _num_bytes(one, seen)
            else:
                left += sparse_parts(one) if one.layout is torch.sparse_coo else [one.values()]
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple | set):
            left += one
        if count + len(left) > MOST_ITEMS + MOST_TIMES * num_bytes:
            raise ValueError("it holds more than the file has room for")


def _num_bytes(tensor: Tensor, seen: set[object]) -> int:
    """Return how many bytes a tensor needs in addition to the tensors and storages in ``seen``."""
    if tensor.is_meta:
        raise ValueError("a tensor in it has no numbers")
    storage = tensor.untyped_storage()
    key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    known = {key, storage.data_ptr()} & seen
    seen |= {key, storage.data_ptr()}
    if key in known:
        return 0
    own = tensor.numel() * tensor.element_size()
    return own if known else max(own, storage.nbytes())


# The index of parts --------------------------------------------------------------------------


class PickledPart(NamedTuple):
    """The place of a part of a tensor: a file of ``torch.save`` inside another file."""

    file: str
    start: int
    length: int


def index(file: IO[bytes]) -> dict[str, DividedTensor]:
    """Read the ``.metadata`` of torch.distributed.checkpoint, without using its classes.

    Raises ValueError or UnpicklingError for content that does not belong there.
    """
    data = file.read()
    _refuse_slow(data)
    found = _Index(io.BytesIO(data)).load()
    places = {
        (at.fqn, numbers(at.offset)): _place(where) for at, where in found.storage_data.items()
    }
    return {name: _whole(name, one, places) for name, one in found.state_dict_metadata.items()}


def _whole(
    name: str, one: Any, places: dict[tuple[str, tuple[int, ...]], PickledPart]
) -> DividedTensor:
    if type(one).__name__ != "TensorStorageMetadata":
        raise ValueError(f"{name} in it is not a tensor")
    state = one.properties.state
    dtype = state[0] if isinstance(state, tuple) else state["dtype"]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} in it is of type {dtype!r}")
    parts = [
        TensorPart(
            numbers(chunk.offsets), numbers(chunk.sizes), places[name, numbers(chunk.offsets)]
        )
        for chunk in one.chunks
    ]
    return DividedTensor(dtype, numbers(one.size), parts)


def _place(where: Any) -> PickledPart:
    if getattr(where, "transform_descriptors", None):
        raise ValueError(f"{where.relative_path} in it is compressed")
    if not isinstance(where.relative_path, str):
        raise ValueError(f"a part in it is in {where.relative_path!r}")
    return PickledPart(where.relative_path, *numbers((where.offset, where.length)))


class _Index(pickle.Unpickler):
    """An unpickler that makes plain records instead of objects of the real classes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._kinds: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        at = (module, name)
        if at in PLAIN:
            return PLAIN[at]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if at not in OTHERS and not (module in OF_DCP and name.isidentifier()):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return self._kinds.setdefault(at, type(name, (_Record,), {}))


class _Record:
    """The attributes of an object."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts

    def __setstate__(self, state: Any) -> None:
        self.state = state
        if isinstance(state, dict):
            vars(self).update(state)


class _Storages(_Index):
    """Checks that each storage in a file of ``torch.save`` has as many bytes as its entry.

    torch before 2.10 does not: its tensor would have memory behind that of the entry.
    """

    def __init__(self, text: bytes, sizes: dict[str, int]) -> None:
        super().__init__(io.BytesIO(text))
        self._sizes = sizes

    def find_class(self, module: str, name: str) -> Any:
        base = tuple if name == "Size" else dict if name == "OrderedDict" else _Record
        return self._kinds.setdefault((module, name), type(name, (base,), {}))

    def persistent_load(self, saved: Any) -> None:
        _, kind, key, _, count = saved
        size = self._sizes.get(f"data/{key}".lower())
        are_plain = type(key) is str and type(count) is int
        if not are_plain or count * num_bytes_of(kind.__name__) != size:
            raise ValueError(f"{count!r} numbers of a {kind.__name__} in it have {size} bytes")


def part(file: IO[bytes], place: PickledPart) -> Tensor:
    """Read one part of a tensor. Raises ValueError for anything else."""
    size = file.seek(0, 2)
    if place.start + place.length > size:
        raise ValueError(f"a part at {place.start} with {place.length} bytes, of {size}")
    file.seek(place.start)
    found = read(io.BytesIO(file.read(place.length)))
    if not isinstance(found, Tensor):
        raise ValueError(f"{an(type(found).__name__)} in the place of a tensor")
    return found
