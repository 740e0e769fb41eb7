"""Write docs/options.md from the constructors of the installed plugins::

.venv/bin/python docs/generate_options.py            # write it
.venv/bin/python docs/generate_options.py --check    # exit status 1 if it is not up to date
"""

from __future__ import annotations

import sys
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
HEAD = "| option | type | default | meaning |\n| --- | --- | --- | --- |"
INTRODUCTION = """\
# Options of `session`

<!-- docs/generate_options.py writes this page from the constructors of the plugins. -->

Pass them by keyword: `session(strategy="ddp", precision="bf16-mixed")`. Passing an option
activates its plugin. `torchbus options` lists the options of all installed packages, third-party
plugins included. A default applies once its plugin is active: without `progress=True`, there is no
progress bar.

`torchbus run` takes the same options. Write those of plugins after `-o`:

```sh
torchbus run --devices 2 -o precision=bf16-mixed train.py
```

Or write them into a TOML file, for `torchbus run --config run.toml train.py`:

```toml
strategy = "ddp"
devices = 2
precision = "bf16-mixed"
plugins = ["gpu"]
```

An option on the command line overrides the file. `s.explain()` lists what the file sets, and what
was overridden. An unknown name is an error. On Python 3.10, a file needs `torchbus[toml]`.

To let a shell complete commands, options and names, install `torchbus[completion]`:

```sh
torchbus completion bash > ~/.local/share/bash-completion/completions/torchbus
```

Type checkers and editors know all options, and the methods of `s`. Run `torchbus stubs` once to
add those of third-party plugins.
"""


def page() -> str:
    """The whole text."""
    options = [one for one in known_options() if one.package in OURS]
    parts = [INTRODUCTION]
    for (package, plugin), group in groupby(options, lambda one: (one.package, one.plugin)):
        title = "Every session" if plugin == "session" else f"{plugin or package} ({package})"
        rows = "\n".join(map(_row, group))
        parts.append(f"## {title}\n\n{HEAD}\n{rows}\n")
    return "\n".join(parts)


def _row(one: Option) -> str:
    kind = (
        one.kind.replace("typing.Literal", "")
        .replace("collections.abc.", "")
        .replace("typing.Any", "Any")
    )
    kind = kind.replace("torchbus.bus.base.", "").replace(" | ", " or ")
    default = f"`{one.default}`" if one.default else ""
    cells = (f"`{one.name}`", f"`{kind}`", default, one.words.replace("``", "`"))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
