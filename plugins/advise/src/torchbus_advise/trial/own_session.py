"""A script that has a session of its own runs in that of the trial: its options are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torchbus.session import Session

from torchbus_advise.replacing import sessions_replaced

T = TypeVar("T")
NOTE = "the script's own session(...) was left out"


@contextmanager
def left_out(active: Session, notes: list[str]) -> Iterator[None]:
    """Inside, ``session(...)`` of a script gives ``active``. ``notes`` says so if it has
    happened."""

    class OwnSession:
        def __init__(self, *plugins: object, **words: object) -> None:
            if NOTE not in notes:
                notes.append(NOTE)

        def __enter__(self) -> Session:
            return active

        def __exit__(self, *error: object) -> None:
            pass

        def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
            return function

        def start(self) -> Session:
            return active

        def __getattr__(self, name: str) -> object:
            return getattr(active, name)

        def close(self, error: BaseException | None = None) -> None:
            pass

    with sessions_replaced(OwnSession):
        yield
