"""A script that has a session of its own: the explainer joins that one."""

from __future__ import annotations

from types import CodeType
from typing import Any

from torchbus.session import Session

from torchbus_advise.explain.explainer import NAME, Explainer
from torchbus_advise.replacing import sessions_replaced
from torchbus_cli import programs as program


def has_own_session(found: program.Program) -> bool:
    """Whether the script imports ``session`` from torchbus."""
    return any({"torchbus", "session"} <= set(code.co_names) for code in _codes(found.code))


def run_in_its_own(found: program.Program, explainer: Explainer) -> None:
    """Raises what the script raises."""

    class Explained(Session):
        def __init__(self, *plugins: object, **words: Any) -> None:
            super().__init__(*plugins, **words)
            self.add_plugin(explainer, NAME)

    class Nothing:
        def close(self, error: BaseException | None = None) -> None:
            """The script closes its session itself."""

    found.install()
    with sessions_replaced(Explained):
        found.run(Nothing())  # type: ignore[arg-type]


def _codes(code: CodeType) -> list[CodeType]:
    """The code of a script, and of all functions and classes in it."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [code, *(found for one in inner for found in _codes(one))]
