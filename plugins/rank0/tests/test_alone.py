"""With one rank there is nothing to share: prints and files stay Python's."""

from __future__ import annotations

import builtins
import os
import shutil
from pathlib import Path

import pytest
import torch
from torchbus import session

from torchbus_rank0.whole_files import absolute, is_private, is_special


def test_a_session_of_one_rank_replaces_no_function_of_files(tmp_path: Path) -> None:
    before = (builtins.open, builtins.print, os.replace, os.remove, shutil.copy, torch.save)
    with session():
        inside = (builtins.open, builtins.print, os.replace, os.remove, shutil.copy, torch.save)
        torch.save(torch.ones(2), tmp_path / "whole.pt")
    assert inside == before and os.listdir(tmp_path) == ["whole.pt"]


@pytest.mark.parametrize(
    ("path", "private"),
    [
        ("/dev/null", True),
        ("/proc/self/status", True),
        ("~/.cache/x", True),
        ("result.json", False),
    ],
)
def test_what_does_not_belong_to_the_script(path: str, private: bool) -> None:
    assert is_private(absolute(os.path.expanduser(path))) is private


def test_a_folder_and_a_pipe_are_no_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    found = [is_special(str(tmp_path / name)) for name in ("pipe", "file", "gone", ".")]
    assert found == [True, False, False, True]
    assert absolute("") == ""
