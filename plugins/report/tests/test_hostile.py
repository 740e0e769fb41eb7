"""Whatever stands in a run's folder, by accident or by somebody's will: a line about that run, and
the others as ever.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchbus_report.page import page
from torchbus_report.runs import summary
from torchbus_report.runs.reading import read

from .hostile_files import BAD, GOOD, KINDS, called, fill

KNOWN = [
    "name",
    "started",
    "world_size",
    "device",
    "strategy",
    "options",
    "command",
    "step",
    "epoch",
    "time_s",
    "loss",
    "lr",
    "records_lost",
]
numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**400), 1e308, -1e308, 5e-324, 2**63, 2**64, -1, 0])
)
odd = [
    "nan",
    "inf",
    "\ud800",
    "a\x00b",
    "\x1b[2J\x1b]0;x\x07",
    "\u202eevil",
    "<script>alert(1)</script>",
    "x" * 5_000,
]
words = st.text(max_size=20) | st.sampled_from(odd)
leaves = st.none() | st.booleans() | numbers | words
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.sampled_from(KNOWN) | words, values, max_size=8)
records = st.fixed_dictionaries(
    {"time_s": numbers, "step": numbers, "loss": numbers},
    optional={"epoch": values, "lr": numbers, "x": numbers},
)
huge = [
    b'{"step":1e999,"time_s":1e999,"loss":1e999}',
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"1" * 5_000,
    b'{"time_s":1,"loss":' + b"9" * 5_000 + b"}",
]
raw = st.sampled_from(huge)
texts = (
    (objects | records | values).map(lambda value: json.dumps(value).encode())
    | raw
    | st.binary(max_size=60)
)
files = st.lists(texts, max_size=6).map(b"\n".join)
NAMES = [
    "config.json",
    "metrics-rank0.jsonl",
    "metrics-rank1.jsonl",
    "metrics-rank999999999.jsonl",
    "system-rank0.jsonl",
    "media.jsonl",
    "metrics-rank٣.jsonl",
]
contents = st.dictionaries(
    st.sampled_from(NAMES), files | st.sampled_from(sorted(KINDS)), max_size=4
)


class Tags(HTMLParser):
    """Counts scripts, and remembers attributes that would run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.handlers = 0, []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(contents)
def test_a_bad_run_does_not_hide_the_others(logs: Path, told: dict[str, Any]) -> None:
    fill(logs / BAD, told)
    status, out, err = called("runs", str(logs))
    assert (
        (status, err) == (0, "")
        and re.search(rf"{GOOD} +baseline +finished +2", out)
        and "0.08629" in out
    )
    assert out.replace("\n", "").isprintable()
    status, out, err = called("runs", str(logs), "--json")
    found = {one["run"]: one for one in json.loads(out, parse_constant=pytest.fail)}
    assert status == 0 and found[GOOD]["steps"] == 49 and found[GOOD]["notes"] == []
    if any(name.startswith(("config", "metrics-rank0", "metrics-rank1")) for name in told):
        assert BAD in found
    text = page([read(logs / GOOD), read(logs / BAD)])
    assert (
        (Tags(text).scripts, Tags(text).handlers) == (1, [])
        and "root:" not in text
        and not any("\ud800" <= one <= "\udfff" for one in text)
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("fifo", "can't be read: it is not a regular file"),
        ("folder", "can't be read: it is not a regular file"),
        ("sparse", "has a line longer than 1 MiB: the rest is left out"),
        ("endless", "is a link that leads out of the folder"),
        ("outside", "is a link that leads out of the folder"),
        ("up", "is a link that leads out of the folder"),
        ("nowhere", "can't be read: No such file"),
    ],
)
def test_what_is_said_of_a_file(logs: Path, kind: str, words: str) -> None:
    fill(logs / BAD, {"config.json": b"{}", "metrics-rank0.jsonl": kind})
    (note,) = summary.of(read(logs / BAD)).notes
    assert note.startswith(f"metrics-rank0.jsonl {words}")
    assert [point.step for point in read(logs / BAD).metrics[0].points] == (
        [3] if kind == "sparse" else []
    )
