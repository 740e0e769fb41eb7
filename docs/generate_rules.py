"""Write docs/conformance-rules.md from the rules of the conformance kit::

python docs/generate_rules.py            # write it
python docs/generate_rules.py --check    # exit status 1 if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from written import run

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import RULES

PAGE = Path(__file__).resolve().parent / "conformance-rules.md"
TOP = """# Rules of the conformance kit

<!-- docs/generate_rules.py writes this page from the rules. -->

What the [conformance kit](conformance.md) tries. For a broken rule, it prints the usual remedy.
Rules in bold can't be refused.

"""
HEAD = "| rule | says |\n|---|---|\n"
SCRIPTS = "\nThese loops are special to one kind of script: hold the other rules first.\n\n"
SCRIPTS += "| rule | the loop |\n|---|---|\n"


def row(rule: Rule) -> str:
    needs = f" Needs torchbus-{', torchbus-'.join(rule.needs)}." if rule.needs else ""
    name = f"**`{rule.name}`**" if rule.essential else f"`{rule.name}`"
    return f"| {name} | {rule.says}{needs} |\n"


def page() -> str:
    """The page as it should be."""
    scripts = [rule for rule in RULES if rule.name.startswith("script-")]
    table = HEAD + "".join(row(rule) for rule in RULES if rule not in scripts) + SCRIPTS
    table += "".join(f"| `{rule.name}` | {rule.says} |\n" for rule in scripts)
    return TOP + table


if __name__ == "__main__":
    sys.exit(run(PAGE, page, __doc__))
