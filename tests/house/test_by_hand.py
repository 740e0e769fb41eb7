"""The way out: each script by hand prints what its one-line form prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snippets import Snippet, find

from torchbus_advise.explain import PARTS, parts
from torchbus_testing.forking import fork_script

PAGE = Path(__file__).parents[2] / "docs" / "by-hand.md"
HEADINGS = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
SCRIPTS = find(PAGE)
PAIRS = list(zip(HEADINGS, SCRIPTS[::2], SCRIPTS[1::2], strict=False))


@pytest.mark.parametrize(
    ("one_line", "by_hand"), [pair[1:] for pair in PAIRS], ids=[pair[0] for pair in PAIRS]
)
def test_by_hand_the_loop_prints_the_same(
    one_line: Snippet, by_hand: Snippet, tmp_path: Path
) -> None:
    assert "torchbus" in one_line.code and "torchbus" not in by_hand.code
    short = fork_script(one_line.code, cwd=tmp_path / "one-line")
    long = fork_script(by_hand.code, cwd=tmp_path / "by-hand")
    assert short.ok() and long.ok() and short.stdout == long.stdout
    assert any(character.isdigit() for character in short.stdout)


def test_each_section_has_a_script_of_each_kind() -> None:
    assert len(SCRIPTS) == 2 * len(PAIRS) and HEADINGS[len(PAIRS) :] == ["What has no short form"]


def test_explain_names_the_sections_of_the_page() -> None:
    anchors = [heading.lower().replace(" ", "-") for heading in HEADINGS]
    assert {part.anchor for part in PARTS} == set(anchors[:-1])


def test_one_rank_without_plugins_has_nothing_to_write_by_hand() -> None:
    assert "does nothing" in parts([], 1)
    assert "clip_grad_norm_" in parts(["clip"], 1) and "DistributedSampler" not in parts(
        ["clip"], 1
    )
    assert "DistributedSampler" in parts(["ddp", "sampler"], 2)
