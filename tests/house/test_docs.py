"""The documentation is true: its code runs, its quotations stand in the source, its links lead
somewhere.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from messages import GAP, messages

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "core/*.md",
        "plugins/*/*.md",
        "contrib/*/*.md",
        "benchmarks/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
CODE = [
    page
    for page in PAGES
    if "```python\n" in page.read_text(encoding="utf-8")
    and page.parent.name != "coming-from"  # tests/pages runs and compares these
    and page.name != "INDEX.md"  # the README, with other links
]
SOURCES = [
    path
    for pattern in ("core/src", "plugins/*/src", "contrib/*/src")
    for path in ROOT.glob(f"{pattern}/**/*.py")
]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
SENTENCE_ENDS = re.compile(r"(?<!\.\.)[.!?](?= +\S)")


OFTEN = {
    ROOT / page
    for page in (
        "README.md",
        "docs/writing-a-plugin.md",
        "docs/writing-a-strategy.md",
        "plugins/clip/README.md",
    )
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[] if page in OFTEN else pytest.mark.slow)
        for page in CODE
    ],
)
def test_the_code_of_a_page_does_what_the_page_says(page):
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "snippets.py", page],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", ["events", "first_lines", "methods", "options"])
def test_a_page_that_is_generated_is_up_to_date(page):
    result = subprocess.run(
        [sys.executable, ROOT / "docs" / f"generate_{page}.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        own = target.removeprefix("https://github.com/torchbus/torchbus/blob/main/")
        if own.startswith(("https://", "http://")):
            continue
        place = page.parent if own == target else ROOT
        found = (place / own).resolve() if target else page
        assert found.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(found), (
            f"{target}#{anchor}: there is no such heading"
        )


FIRST = [
    ROOT / "README.md",
    *ROOT.glob("docs/getting-started.md"),
    *ROOT.glob("docs/getting-started/*.md"),
]


@pytest.mark.parametrize("page", FIRST, ids=name)
def test_code_of_the_first_pages_fits_a_column(page):
    blocks = re.findall(
        r"^```(?:python|sh|diff).*?\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
    )
    assert blocks and [line for one in blocks for line in one.splitlines() if len(line) > 80] == []


NAME = re.compile(r"`(torchbus(?:_\w+)?(?:\.\w+)+)(?:\(\))?`")
FILE = re.compile(r"`(torchbus(?:_\w+)?/[\w/]+\.py)`")
GROUPS = {
    group
    for path in ROOT.glob("*/*/pyproject.toml")
    for group in re.findall(r'entry-points\."?([\w.]+)"?\]', path.read_text("utf-8"))
}


def test_names_of_modules_on_pages_are_there():
    named = {
        (name(page), one)
        for page in PAGES
        if page.name not in {"events.md", "first-lines.md"}
        for one in NAME.findall(page.read_text("utf-8"))
        if one not in GROUPS and not one.endswith((".py", ".md", ".io"))
    }
    assert len(named) > 20 and sorted(one for one in named if not resolves(one[1])) == []


def resolves(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_source_files_on_pages_are_there():
    roots = [ROOT / "core/src", *ROOT.glob("*/*/src")]
    named = {(name(page), one) for page in PAGES for one in FILE.findall(page.read_text("utf-8"))}
    assert (
        named
        and sorted(one for one in named if not any((root / one[1]).exists() for root in roots))
        == []
    )


def test_the_paths_on_the_architecture_page_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:core|plugins)/[\w/.]+)`", text)
    assert len(paths) > 15 and [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.parent.name in ("plugins", "contrib")], ids=name
)
def test_every_package_stands_in_the_readme(page):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert f"[{title}]({name(page)})" in text


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_quoted_messages_stand_in_the_source():
    """In docs/troubleshooting a block has messages with a blank line between two; an ellipsis stands
    for what varies.
    """
    said = {" ".join(message.split()) for path in SOURCES for message in strings(path)}
    assert len(quotations()) > 20
    assert [message for message in quotations() if not any(stand_in(message, said))] == []


def test_every_message_is_quoted():
    """A quotation begins where the message does, and may end earlier. A message has at most three
    sentences.
    """
    quoted = quotations()
    said = messages(
        [path for path in SOURCES if not {"torchbus_testing", "torchbus_simulator"} & {*path.parts}]
    )
    assert len(said) > 300
    assert [text for _, text in said if len(SENTENCE_ENDS.findall(text)) >= 3] == []
    assert (
        sorted(
            f"{name(Path(path))}: {text}"
            for path, text in said
            if not any(begins(one, text) for one in quoted)
        )
        == []
    )


def quotations() -> list[str]:
    pages = sorted((ROOT / "docs").glob("troubleshooting/*.md"))
    assert len(pages) > 5
    return [
        " ".join(message.split())
        for page in pages
        for block in re.findall(
            r"^```text\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
        )
        for message in block.split("\n\n")
    ]


def begins(quoted: str, message: str) -> bool:
    return message.startswith(quoted.split(GAP)[0]) and stands_in(quoted, message)


def stand_in(quoted: str, messages: Iterable[str]) -> Iterator[bool]:
    longest = max(quoted.split(GAP), key=len)
    return (stands_in(quoted, one) for one in messages if longest in one)


def stands_in(quoted: str, message: str) -> bool:
    """Whether the parts of a quotation stand in a message one after another."""
    place = 0
    for part in quoted.split(GAP):
        found = message.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def strings(path: Path) -> list[str]:
    """All strings of a source file, an ellipsis for each part that is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        string(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp)
    ]


def string(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        return "".join(
            string(part) if isinstance(part, ast.Constant) else GAP for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return string(node.left) + string(node.right)
    return GAP


@pytest.mark.timeout(300)
def test_the_plugin_package_of_the_page_installs_and_works(tmp_path):
    text = (ROOT / "docs" / "writing-a-plugin.md").read_text(encoding="utf-8")
    files = re.findall(r"^`([\w/.]+)`\n\n```(?:toml|python no-run)\n(.*?)^```$", text, re.M | re.S)
    assert [path for path, _ in files] == [
        "pyproject.toml",
        "src/torchbus_nan/__init__.py",
        "train.py",
    ]
    for path, content in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
        tmp_path,
    ]
    subprocess.run(pip, check=True)
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(site)!r}); exec(open('train.py').read())",
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0 and re.search(r"^plugins +nan", result.stdout, re.M), (
        result.stderr
    )
