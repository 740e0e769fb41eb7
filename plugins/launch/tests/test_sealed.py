"""The store of the ranks, as others may write to it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from torchbus_launch.store import SealedStore


@pytest.fixture
def raw():
    return dist.HashStore()


def test_values_come_back(raw) -> None:
    store = SealedStore(raw, b"key")
    store.set("name", "text")
    store.within("part").set("name", b"\x00\xff")
    assert (
        store.get("name"),
        store.read("part/name"),
        store.within("part").multi_get(["name"]),
    ) == (b"text", b"\x00\xff", [b"\x00\xff"])
    assert (
        store.check(["name", "part/name"])
        and not store.check(["name", "other"])
        and store.read("other") is None
    )
    assert store.delete_key("name") and store.read("name") is None


def test_what_a_stranger_writes_is_not_there(raw) -> None:
    store = SealedStore(raw, b"key")
    for sealed in (b"", b"x", b"a stranger's words, long enough for a tag"):
        raw.set("name", sealed)
        assert store.read("name") is None and not store.check(["name"])
    SealedStore(raw, b"another key").set("name", "text")
    assert store.read("name") is None


def test_a_genuine_value_is_none_of_another_name(raw) -> None:
    store = SealedStore(raw, b"key")
    store.set("one", "text")
    raw.set("other", raw.get("one"))
    raw.set("part/one", raw.get("one"))
    assert store.read("other") is None and store.read("part/one") is None


def test_only_the_first_is_set(raw) -> None:
    store = SealedStore(raw, b"key")
    raw.set("name", b"a stranger was here first")
    assert (
        store.compare_set("name", "", "mine")
        == b"mine"
        == store.compare_set("name", "", "later")
        == store.get("name")
    )
    assert store.compare_set("name", "mine", "now") == b"now" == store.get("name")


def test_counts(raw) -> None:
    store, other = SealedStore(raw, b"key"), SealedStore(raw, b"key")
    raw.set("name", b"1000000")
    assert [
        store.add("name", 0),
        store.add("name", 1),
        other.add("name", 2),
        store.add("name", 0),
    ] == [0, 1, 3, 3]


def test_what_never_comes_is_an_error() -> None:
    raw = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=1)
    )
    raw.set("name", "a stranger's")
    with pytest.raises(
        RuntimeError, match="the store's name was not written by a rank of this job"
    ):
        SealedStore(raw, b"key").get("name")
