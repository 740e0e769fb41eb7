"""The subject of a check: a strategy, or a plugin with a strategy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from torchbus.bus import discovery
from torchbus.session import Session

DEFAULT_STRATEGY = "ddp"


@dataclass(frozen=True)
class Subject:
    """A strategy and plugins, each by the name of an installed one, or as ``module:attribute``.

    ``options`` are those of the session or, if something is given as ``module:attribute``, of its
    constructor. ``session_options`` always go to the session. ``numbers_of_its_local`` is True if a
    plugin changes the numbers of a loop by design (it clips or accumulates). The kit then compares
    with a session of one rank that has the plugin as well.
    """

    strategy: str | None = DEFAULT_STRATEGY
    plugins: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    numbers_of_its_local: bool = False
    session_options: Mapping[str, object] = field(default_factory=dict)

    def session(
        self, ranks: int, options: Mapping[str, object], objects: tuple[object, ...]
    ) -> Session:
        """Return a session of ``ranks`` ranks on the CPU, with a rule's options and plugins."""
        arguments: dict[str, Any] = {"accelerator": "cpu", "launch": "fork", **options}
        arguments |= self.session_options
        mine = dict(self.options)
        named = [*self.plugins, *([self.strategy] if self.strategy else [])]
        imported = {name: import_from(name, mine) for name in named if ":" in name}
        arguments |= {} if imported else mine
        strategy: Any = imported.get(self.strategy or "", self.strategy)
        plugins = [imported.get(name, name) for name in self.plugins]
        if ranks == 1:
            return Session(*plugins, *objects, strategy=None, **arguments)
        return Session(*plugins, *objects, strategy=strategy, devices=ranks, **arguments)

    @classmethod
    def from_json(cls, text: str) -> Subject:
        """Return the subject with these fields."""
        fields = json.loads(text)
        return cls(**{**fields, "plugins": tuple(fields["plugins"])})

    def __str__(self) -> str:
        parts = [f"strategy {self.strategy!r}"] if self.strategy else []
        return ", ".join([*parts, *(f"plugin {name!r}" for name in self.plugins)])


def import_from(name: str, options: Mapping[str, object]) -> object:
    """Import ``module:attribute``; call it with the options if it is a class or a function."""
    made = EntryPoint(name, name, "torchbus").load()
    return made(**options) if callable(made) else made


def other_plugins(subject: Subject) -> list[str]:
    """Return the installed plugins, without strategies and without the subject's plugins."""
    strategies = discovery.installed("strategy")
    return [
        name
        for name in discovery.installed("plugin")
        if name not in strategies and name not in subject.plugins
    ]


def tried_with(plugin: str) -> list[dict[str, Any]]:
    """Return the sets of options with which to try an installed plugin, one for each case.

    They are the attribute ``tried_with`` of the plugin's class or factory. Without it, there is one
    case, without options.
    """
    named = getattr(discovery.load(discovery.find("plugin", plugin)), "tried_with", ())
    return [dict(options) for options in named] or [{}]


def beside(subject: Subject, plugin: str, options: Mapping[str, object]) -> Subject:
    """Return the subject with one more plugin, whose options may change the loop's numbers."""
    return dataclasses.replace(
        subject,
        plugins=(*subject.plugins, plugin),
        session_options={**subject.session_options, **options},
        numbers_of_its_local=subject.numbers_of_its_local or bool(options),
    )


def other_strategies(subject: Subject) -> list[str]:
    """Return the installed strategies other than the subject's."""
    return [name for name in discovery.installed("strategy") if name != subject.strategy]


def missing(needs: tuple[str, ...]) -> list[str]:
    """Return those of these plugins that are not installed."""
    return [name for name in needs if name not in discovery.installed("plugin")]
