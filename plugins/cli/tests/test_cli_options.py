"""``torchbus options`` and ``torchbus stubs``, and what type checkers read."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import signal
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from torchbus import session
from torchbus.bus import discovery
from torchbus.bus.base import hookimpl

from torchbus_cli import options
from torchbus_cli.main import main
from torchbus_cli.options import known_options


class Third:
    """A plugin of somebody else.

    Args:
        third_mode: which of the two, and
            why.
    """

    verbs = ("third",)

    def __init__(self, third_mode: Literal["a", "b"] = "a") -> None:
        self.third_mode = third_mode

    @hookimpl
    def session_start(self, session):
        pass

    def third(self, x: torch.Tensor, *, times: int = 1) -> list[int]:
        """Return numbers."""
        return [len(x)] * times


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch):
    """As if it were installed."""
    value = f"{__name__}:Third"
    offers = {
        kind: {name: [metadata.EntryPoint(name, value, kind)]}
        for kind, name in (("plugin", "third"), ("option", "third_mode"), ("verb", "third"))
    }
    monkeypatch.setattr(discovery, "offers", lambda: offers)
    load = discovery.load
    monkeypatch.setattr(
        discovery, "load", lambda entry: Third if entry.value == value else load(entry)
    )


def test_the_sessions_own_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["timeout_s"] == {
        "name": "timeout_s",
        "kind": "float",
        "default": "1800.0",
        "package": "torchbus",
        "plugin": "session",
        "words": "seconds that a rank waits in a collective before the job ends.",
    }
    assert main(["options"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["timeout_s", "1800.0", "session"] for line in lines)


def test_one_option(third: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "third_mode"]) == 0
    assert capsys.readouterr().out == (
        'third_mode: typing.Literal["a", "b"] = \'a\'\n'
        "of third (unknown)\n"
        "which of the two, and why.\n"
    )


@pytest.mark.parametrize("words", [["--version"], ["options", "seed"], ["options", "--help"]])
def test_a_reader_that_has_left(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``torchbus options | head``: no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main(words) == 128 + signal.SIGPIPE


def test_an_option_that_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "timeout"]) == 2
    assert "unknown option 'timeout': here it is called timeout_s=" in capsys.readouterr().err


def test_stubs_of_plugins_of_others(
    third: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stubs", "--to", str(tmp_path)]) == 0
    folder = tmp_path / "torchbus-stubs"
    assert capsys.readouterr().out == f"written: {folder}\n"
    assert (folder / "py.typed").read_text() == "partial\n"
    text = (folder / "installed.pyi").read_text()
    compile(text, "installed.pyi", "exec")
    assert 'third_mode: typing.Literal["a", "b"]' in text
    assert "def third(self, x: torch.Tensor, *, times: int = ...) -> list[int]: ..." in text
    assert "timeout_s" not in text


def test_stubs_where_nothing_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main(["stubs", "--to", str(tmp_path / "file")])
    assert "can't be written: Not a directory; name a folder with --to" in capsys.readouterr().err


def test_every_option_has_words() -> None:
    assert [one.name for one in known_options() if not one.words] == []


def _of(given: NotThere, other: list[int] | None = None) -> None:  # noqa: F821
    """Types that are there, and one that is not."""


def test_a_type_that_is_not_there_is_any() -> None:
    import inspect

    parameters = inspect.signature(_of).parameters.values()
    texts = [options.text(options.of_parameter(_of, one), set()) for one in parameters]
    assert texts == ["typing.Any", "list[int] | None"]


def test_a_session_shows_where_it_is() -> None:
    s = session()
    assert repr(s) == "<torchbus session, not running: rank 0 of 1 on cpu>"
    with s:
        assert repr(s) == "<torchbus session, running: rank 0 of 1 on cpu>"
