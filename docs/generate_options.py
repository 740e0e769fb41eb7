"""Write docs/options.md from the constructors of the installed plugins::

.venv/bin/python docs/generate_options.py            # write it
.venv/bin/python docs/generate_options.py --check    # exit status 1 if it is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from torchbus.bus import discovery
from written import run

from torchbus_cli.options import Option, known_options

PAGE = Path(__file__).resolve().parent / "options.md"
OURS = {
    "torchbus",
    *(name for kind in discovery.KINDS for name in discovery.distributions(kind).values()),
}
HEAD = "| option | type | default | meaning |\n|---|---|---|---|"
INTRODUCTION = """\
# Options of `session`

<!-- docs/generate_options.py writes this page from the constructors of the plugins. -->

Pass them by keyword: `session(strategy="ddp", precision="bf16-mixed")`. An option activates its
plugin. A default applies once the plugin is active: without `progress=True`, there is no progress
bar. `torchbus options` lists the options of all installed packages, third-party plugins included.

`torchbus run` takes the same options. Write those of plugins after `-o`:

```sh
torchbus run --devices 2 -o precision=bf16-mixed train.py
```

Or write them to a TOML file, for `torchbus run --config run.toml train.py`:

```toml
strategy = "ddp"
devices = 2
precision = "bf16-mixed"
plugins = ["gpu"]
```

An option on the command line overrides the file; `s.explain()` lists both. An unknown name is an
error. On Python 3.10, a file needs tomli: `pip install tomli`.

To let a shell complete commands, options and names, run `pip install shtab`, and then:

```sh
torchbus completion bash > ~/.local/share/bash-completion/completions/torchbus
```

Type checkers and editors know all options, and the methods of `s`. Run `torchbus stubs` once to
add those of third-party plugins.
"""


def page() -> str:
    """The whole text."""
    options = [one for one in known_options() if one.package in OURS]
    sections: dict[tuple[str, ...], list[str]] = {}
    shown: dict[tuple[str, ...], str] = {}
    for (package, plugin), group in groupby(options, lambda one: (one.package, one.plugin)):
        found = list(group)
        rows = (package, *map(_row, found))
        if rows not in sections:
            rows_here = [_row(one, shown.get(_facts(one), "")) for one in found]
            shown |= {_facts(one): plugin for one in found if _facts(one) not in shown}
            sections[rows] = [_title(package, plugin), "\n".join(_once(rows_here)), plugin]
        else:
            sections[rows].append(plugin)
    parts = [INTRODUCTION]
    for title, table, _, *others in sections.values():
        same = ", ".join(f"`{one}`" for one in others)
        note = f"The same for {same}.\n\n" if others else ""
        parts.append(f"{title}\n\n{note}{HEAD}\n{table}\n")
    return "\n".join(parts)


def _title(package: str, plugin: str) -> str:
    return f"## {'Every session' if plugin == 'session' else f'{plugin or package} ({package})'}"


def _facts(one: Option) -> tuple[str, ...]:
    """What two plugins' options of one name have in common, to be said once."""
    return one.name, one.kind, one.default, one.words


def _once(rows: list[str]) -> Iterator[str]:
    """The rows. One that says what the one before says is short; those that refer to another
    strategy are one row, at the end.
    """
    last, referring = "", dict[str, list[str]]()
    for row in rows:
        cells, _, words = row.removesuffix(" |").rpartition(" | ")
        if words.startswith("as for "):
            referring.setdefault(words, []).append(cells.split(" | ")[0].removeprefix("| "))
        else:
            yield f"{cells} | the same |" if words == last else row
            last = words
    for words, names in referring.items():
        yield f"| {', '.join(names)} | | | {words} |"


def _row(one: Option, as_for: str = "") -> str:
    kind = (
        one.kind.replace("typing.Literal", "")
        .replace("collections.abc.", "")
        .replace("typing.Any", "Any")
    )
    kind = kind.replace("torchbus.bus.base.", "").replace(" | ", " or ")
    default = f"`{one.default}`" if one.default else ""
    words = one.words.replace("``", "`")
    if found := re.search(r"as for (\w+)\.$", words):
        as_for = found[1]
    words = f"as for {as_for}." if as_for else words
    cells = (f"`{one.name}`", f"`{kind}`", default, words)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
