"""Build the site with zensical::

    python docs/site/build.py                     # into site/; a broken link is an error
    python docs/site/build.py --site-dir FOLDER   # into another folder
    python docs/site/build.py --serve             # show it, and build it again after each change

The site's pages are in several folders of the repository, and their links are those of the
repository, so that they work on a code host too. They are staged in one folder first, where each
link leads to a page of the site: READMEs of packages become pages, and a source that a page links
to becomes a page that shows it.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGED = ROOT / "build" / "pages"  # docs_dir of mkdocs.yml
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
WIDE = {
    "comparison.md",
    "benchmark-corpus.md",
    "benchmark-results.md",
    "benchmark-scale.md",
}  # their tables need the room of the sidebars
WIDE_HEAD = "---\nhide:\n  - navigation\n  - toc\n---\n\n"
MESSAGES = re.compile(r"^```text\n.*?^```$", re.M | re.S)
MESSAGE = re.compile(r"^```text\n(.*)\n", re.M)
NESTED = re.compile(r"^( {2,3})(?=\S)", re.M)
ELSEWHERE = {
    "README.md": "index.md",
    "core/README.md": "packages/core.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/README.md": "benchmark-results.md",
    "benchmarks/results/corpus.md": "benchmark-corpus.md",
    "benchmarks/results/scale.md": "benchmark-scale.md",
    "benchmarks/results/faults.md": "benchmark-faults.md",
    "benchmarks/results/versions.md": "benchmark-versions.md",
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


def staged() -> dict[str, str | Path]:
    """All files of the site by their place: the text of a page, or the path of another file."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".py"]
    paths = {path.relative_to(ROOT / "docs").as_posix(): path for path in docs}
    paths |= {place: ROOT / source for source, place in ELSEWHERE.items()}
    pages = {place: path.read_text("utf-8") for place, path in paths.items() if place[-3:] == ".md"}
    linked = {path for place, text in pages.items() for path in _links(text, place)}
    sources = {_place(path): _shown(path) for path in sorted(linked) if _is_shown(path)}
    return {**paths, **{place: page(text, place) for place, text in pages.items()}, **sources}


def page(markdown: str, here: str) -> str:
    """Rewrite what the repository's Markdown means to what Python's Markdown understands."""

    def to_site(match: re.Match[str]) -> str:
        path = _target(match[1], here)
        return (
            posixpath.relpath(_place(path), posixpath.dirname(here)) if _exists(path) else match[1]
        )

    text = _outside_code(lambda text: NESTED.sub(r"\1\1", LINK.sub(to_site, text)), markdown)
    text = _messages(text) if here.startswith("troubleshooting/") else _terminals(text)
    return WIDE_HEAD + text if here in WIDE else text


def _messages(markdown: str) -> str:
    """Give each message a block and an anchor, its first words, and let it wrap (pages.css)."""
    apart = MESSAGES.sub(lambda block: block[0].replace("\n\n", "\n```\n\n```text\n"), markdown)
    seen: Counter[str] = Counter()

    def anchored(match: re.Match[str]) -> str:
        words = re.findall(r"[a-z0-9]+", match[1].lower())[:10]
        name = "-".join(words)
        seen[name] += 1
        anchor = name if seen[name] == 1 else f"{name}_{seen[name]}"
        return f"``` {{ .text .message #{anchor} }}\n{match[1]}\n"

    return MESSAGE.sub(anchored, apart)


def _terminals(markdown: str) -> str:
    """Let what a terminal shows wrap (pages.css)."""
    return re.sub(r"^( *)```text$", r"\1``` { .text .terminal }", markdown, flags=re.M)


def _outside_code(change: Callable[[str], str], markdown: str) -> str:
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


def stage() -> None:
    """Write the files that have changed, and remove those that are gone."""
    files = staged()
    for place, content in files.items():
        data = content.read_bytes() if isinstance(content, Path) else content.encode()
        path = STAGED / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
    for path in [*STAGED.rglob("*")]:
        if path.is_file() and path.relative_to(STAGED).as_posix() not in files:
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("::")[0])
    parser.add_argument("--site-dir", type=Path, default=ROOT / "site")
    parser.add_argument("--serve", action="store_true")
    given = parser.parse_args()
    stage()
    zensical = [sys.executable, "-m", "zensical"]
    if given.serve:
        server = subprocess.Popen([*zensical, "serve"], cwd=ROOT)
        while server.poll() is None:
            time.sleep(1)
            stage()
        return server.returncode
    status = subprocess.run([*zensical, "build", "--strict", "--clean"], cwd=ROOT).returncode
    if status == 0 and given.site_dir.resolve() != ROOT / "site":
        shutil.copytree(ROOT / "site", given.site_dir, dirs_exist_ok=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
