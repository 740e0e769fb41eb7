"""A hook of mkdocs: makes one site of pages that stand in several folders of the repository.

Links in the pages are those of the repository, so that they work on a code host too. Here each
leads to a page of the site: READMEs of packages become pages, and a source that a page links to
becomes a page that shows it.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
WIDE = {"comparison.md"}  # its tables need the room of the sidebars
MESSAGE = re.compile(r"^```text\n(.*)\n", re.M)
NESTED = re.compile(r"^( {2,3})(?=\S)", re.M)
ELSEWHERE = {
    "README.md": "index.md",
    "core/README.md": "packages/core.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/README.md": "benchmark-results.md",
    "benchmarks/results/corpus.md": "benchmark-corpus.md",
    "benchmarks/results/scale.md": "benchmark-scale.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    **{
        f"{group}/{path.parent.name}/README.md": f"packages/{path.parent.name}.md"
        for group in ("plugins", "contrib")
        for path in sorted((ROOT / group).glob("*/README.md"))
    },
}
AT_HOME = {place: source for source, place in ELSEWHERE.items()}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere, and the sources that any page links to."""
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    pages = [file for file in files if file.src_uri.endswith(".md")]
    linked = {path for file in pages for path in _links(file.content_string, file.src_uri)}
    for path in sorted(path for path in linked if _is_shown(path)):
        files.append(File.generated(config, _place(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite what the repository's Markdown means to what Python's Markdown understands."""
    here = page.file.src_uri
    if here in WIDE:
        page.meta["hide"] = ["navigation", "toc"]

    def to_site(match: re.Match[str]) -> str:
        path = _target(match[1], here)
        return (
            posixpath.relpath(_place(path), posixpath.dirname(here)) if _exists(path) else match[1]
        )

    text = _outside_code(lambda text: NESTED.sub(r"\1\1", LINK.sub(to_site, text)), markdown)
    return _messages(text) if here.startswith("troubleshooting/") else text


def _messages(markdown: str) -> str:
    """Give each message of a page an anchor, its first words, and let it wrap (pages.css)."""
    seen: Counter[str] = Counter()

    def anchored(match: re.Match[str]) -> str:
        words = re.findall(r"[a-z0-9]+", match[1].lower())[:10]
        name = "-".join(words)
        seen[name] += 1
        anchor = name if seen[name] == 1 else f"{name}_{seen[name]}"
        return f"``` {{ .text .message #{anchor} }}\n{match[1]}\n"

    return MESSAGE.sub(anchored, markdown)


def _outside_code(change: Any, markdown: str) -> str:
    """Change a page but for its code, whose fences lose words such as ``no-run``."""
    codes = [re.sub(r"^```(\w+) .*", r"```\1", code) for code in FENCE.findall(markdown)]
    texts = [change(text) for text in FENCE.split(markdown)]
    return texts[0] + "".join(code + text for code, text in zip(codes, texts[1:], strict=True))


def _links(markdown: str, here: str) -> set[str]:
    return {_target(link, here) for link in LINK.findall(FENCE.sub("", markdown))}


def _target(link: str, here: str) -> str:
    """The path in the repository that a link on a page means."""
    source = AT_HOME.get(here, f"docs/{here}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _exists(path: str) -> bool:
    return not path.startswith("..") and (ROOT / path).exists()


def _is_shown(path: str) -> bool:
    """Whether it is a source, for which the site makes a page."""
    return _exists(path) and path not in ELSEWHERE and not path.startswith("docs/")


def _place(path: str) -> str:
    """Where the site has what the repository has at a path."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _shown(path: str) -> str:
    """The page of a source. The search leaves it out."""
    file = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if file.is_dir():
        return head + "\n".join(f"- `{one.name}`" for one in sorted(file.iterdir())) + "\n"
    return f"{head}```````{file.suffix[1:] or 'text'}\n{file.read_text('utf-8')}\n```````\n"
