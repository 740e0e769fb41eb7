"""Pages and sources are written in plain English: phrases that a native engineer would not write
are listed.

It is a word list, not a style engine. A phrase is here because it was never the best one on a page
of this project. Of the pages, code, quotations and generated text are left out. Of the sources,
docstrings, comments and messages are read, without the names of code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {
    "docs/conformance-rules.md",
    "docs/events.md",
    "docs/first-lines.md",
    "docs/options.md",
}
PEOPLE = {"CODE_OF_CONDUCT.md"}
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "core/*.md", "*/*/README.md", "benchmarks/*/*.md")
    for path in sorted(ROOT.glob(pattern))
    if str(path.relative_to(ROOT)) not in GENERATED | PEOPLE
]
PACKAGES = [
    folder
    for pattern in ("core", "plugins/*", "contrib/*")
    for folder in sorted(ROOT.glob(pattern))
    if (folder / "src").is_dir()
]
SCRIPTS = [
    path
    for pattern in (
        "examples/**/*.py",
        "benchmarks/**/*.py",
        "docs/**/*.py",
        "release/*.py",
        "*.py",
    )
    for path in sorted(ROOT.glob(pattern))
]
"""Scripts that people read or run."""
WORD_LISTS = {"plugins/redaction/src/torchbus_redaction/texts.py"}  # its words are data
LEFT_OUT = re.compile(
    r"^ *```.*?^ *```$"  # code
    r"|`[^`\n]*`"
    r"|\"[^\"\n]{1,80}\""  # a quotation
    r"|\]\([^)\n]*\)",  # the target of a link
    re.M | re.S,
)
PHRASES = {
    r"(?<!there )\b(?:is|are|was|were|be) no (?!longer|more|less|other|(?!number|wrapper|parameter|buffer|tracker|worker|listener|user|integer|server|error)\w+er\b)": "is not a",
    r"\bof (?:its|their|one's) own(?= (?:for|when|that|to|in|by|with|and|are|is)\b|[^ \w]|$)": (
        "its own X, a separate X"
    ),
    r"\bas (?:many|few)\b(?! (?:[\w-]+ ){0,3}as\b)": "the same number",
    r"\bfor good\b": "forever, permanently",
    r"\bin vain\b": "without success",
    r"\bnobody\b|\bno one\b": "not X-ed; the session does not",
    r"\bbelongs? into\b": "belongs in",
    r"\bby (?:itself|themselves)\b": "automatically; without the others; in one process",
    r"\bwhat becomes? of\b": "what happens to",
    r"\bnames? (?:that )?goe?s?\b": "is removed, is deprecated",
    r"\bwhat (?:it|they) (?:has|have|had)\b": "the X that it has",
    r"\b(?:told|tells?|telling)\b": "says, reports, exchanges, distinguishes",
    r"\banew\b": "again",
    r"\b(?:hears?|heard|hearing)\b": "listens to, gets",
    r"\bequally many\b": "the same number of",
    r"\bfor (?:itself|themselves)\b": "separately",
    r"\b(?:somebody|anybody) (?:has|have|else|waits)\b": "another user, someone else",
    r"\bcomes? to no\b": "has no, reaches no",
    r"\b(?:is|are|was|were) said\b": "a warning says so",
    r"\bwithout a word\b|\bin silence\b": "without an error",
    r"\bseams?\b": "patch",
    r"\b(?:gradients|ranks|replicas|they) meet\b": "are averaged, connect",
    r"\bstands? in (?!for\b)": "is in",
    r"\bstands still\b": "stalls, is stopped",
    r"\bof the field\b": "frequent, usual",
    r"\bplugins of others\b|\bpackages of others\b": "third-party plugins",
    r"\bwhoever\b": "anyone who",
    r"\bunlike (?:counts?|ends|samples|lengths?|draws|layers|parts|shapes|dtypes)\b": "different",
    r"\balike\b": "in the same way, equal",
    r"\bwas taken for\b|\bwere taken for\b|\btaken away\b": "was mistaken for; removed",
    r"\b(?:let|lets|letting) go of\b": "release, delete",
    r"\bon (?:its|their) way\b": "in transit",
    r"\bso many\b(?! \w+ that)|\bfor so long\b": "this number of, the parameter's name; that long",
}


def found(text: str) -> list[str]:
    """The listed phrases in a page, each with its line and what to write. They may cross a line."""
    left = LEFT_OUT.sub(lambda match: "x" + "\n" * match[0].count("\n"), text)
    left = "\n".join(line.strip() for line in left.split("\n"))
    return [
        f"line {left.count(chr(10), 0, match.start()) + 1}: {match[0]!r}; write: {instead}"
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, left.replace("\n", " "), re.I)
    ]


def spoken(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and literals of several words, with the lines where they begin.

    Comments on consecutive lines are one text. ``{}`` stands for what an f-string fills in.
    """
    tree = ast.parse(source)
    filled = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in filled for part in ast.walk(node) if part is not node}
    for node in filled:
        texts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
        if any(" " in str(one) for one in texts):
            yield node.lineno, "".join(map(str, texts))
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and id(one) not in parts and " " in str(one.value):
            yield one.lineno, str(one.value)
    yield from comments(source)


def comments(source: str) -> Iterator[tuple[int, str]]:
    begin, last, text = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield begin, text
                begin, text = token.start[0], ""
            last, text = token.start[0], f"{text} {token.string.lstrip('#:').strip()}"
    yield begin, text


def found_in_source(source: str) -> list[str]:
    """The listed phrases in what a source says; without names of code and quoted words."""
    return [
        f"line {line}: {match[0]!r} in {text.strip()[:60]!r}; write: {instead}"
        for line, written in spoken(source)
        for text in [re.sub(r"`+[^`]*`+|\"\w+\"|\s+", " ", written)]
        for phrase, instead in PHRASES.items()
        for match in re.finditer(phrase, text, re.I)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_stock_phrase(page: Path) -> None:
    assert found(page.read_text("utf-8")) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda folder: folder.name)
def test_sources_have_no_stock_phrase(package: Path) -> None:
    found = {
        str(path.relative_to(ROOT)): found_in_source(path.read_text("utf-8"))
        for path in sorted(package.glob("src/**/*.py"))
        if str(path.relative_to(ROOT)) not in WORD_LISTS
    }
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_scripts_have_no_stock_phrase() -> None:
    assert len(SCRIPTS) > 40
    found = {path.name: found_in_source(path.read_text("utf-8")) for path in SCRIPTS}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_sources_are_read_in_docstrings_comments_and_messages() -> None:
    assert len(PACKAGES) > 40
    source = '''"""It is told."""

# A pause
# is no error.
told = f"nobody waits for {1 + 1}"
raise ValueError("it ended" " for good")  # ``told`` is a name
'''
    assert [one.partition(";")[0].split(" in ")[0] for one in found_in_source(source)] == [
        "line 5: 'nobody'",
        "line 1: 'told'",
        "line 6: 'for good'",
        "line 3: 'is no '",
    ]


def test_the_list_finds_phrases_but_not_in_code_and_quotations() -> None:
    assert len(PAGES) > 90
    assert found("A pause\nis no error. It is told\nthat.") == [
        "line 2: 'is no '; write: is not a",
        "line 2: 'told'; write: says, reports, exchanges, distinguishes",
    ]
    assert found('`told` and "told"\n\n```text\ntold\n```\n') == []
