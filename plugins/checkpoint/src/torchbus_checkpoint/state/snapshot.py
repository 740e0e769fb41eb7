"""What a session has in a checkpoint: written, and put back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchbus.plugin import Context, UsageError, warn

from torchbus_checkpoint.disk import choice, folder, saving
from torchbus_checkpoint.disk.writer import Writer
from torchbus_checkpoint.loop.contents import Contents, Finder
from torchbus_checkpoint.loop.epochs import Epochs
from torchbus_checkpoint.loop.position import Position
from torchbus_checkpoint.loop.steps import Steps
from torchbus_checkpoint.options import Options
from torchbus_checkpoint.state import capture as state
from torchbus_checkpoint.state import shapes, written
from torchbus_checkpoint.state.plain import decode, encode


class Snapshot:
    """The loop's objects, where it is, and the plugins' states. All ranks call all of it alike."""

    def __init__(self, session: Context, options: Options, finder: Finder, position: Position, steps: Steps, epochs: Epochs) -> None:
        self._session = session
        self._options = options
        self._finder = finder
        self._position = position
        self._steps = steps
        self._epochs = epochs
        self._writer = Writer(session, options.async_save, hosts_share=options.url is None)
        self._registered: dict[str, Any] = {}
        self.written: Callable[[], None] = lambda: None
        self.metric: float | None = None
        self.loop_has_ended = False
        self.end_is_saved = False

    def register(self, name: str, thing: Any) -> None:
        if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
            raise UsageError(f"s.register({name!r}, {type(thing).__name__}): it needs the methods state_dict() and load_state_dict(state)")
        if name in self._registered and self._registered[name] is not thing:
            raise UsageError(f"s.register({name!r}): there is one of this name already")
        self._registered[name] = thing

    def write(self, final: Path) -> None:
        contents = self._finder.find_at_end() if self.loop_has_ended else self._finder.find()
        registered = state.of_registered(self._registered)
        with self._session.in_parts():
            weights = state.weights(contents)
            training = state.training(contents, self._steps.has_gradients, registered)
            shared, groups = saving.files(self._options.format, weights, training, self._session.is_main)
        facts = {"step": self._steps.count, "epoch": self._steps.epochs, "world_size": self._session.world_size, "metric": self.metric,
                 "batches_per_step": self._batches_per_step}  # fmt: skip
        automatic = final.parent == self._options.folder

        def prune() -> None:
            if automatic:
                self.written()
                choice.prune(final.parent, self._options.keep, self._options.monitor is not None, self._options.mode)

        self._writer.write(final, shared, self._own_state(contents), groups, facts, prune)

    def wait(self) -> None:
        """Until all is on disk."""
        self._writer.wait()

    def _own_state(self, contents: Contents) -> dict[str, Any]:
        """What each rank has for itself."""
        plugins = {name: encode(plugin.state_dict(), f"plugin {name}") for name, plugin in self._stateful_plugins().items()}
        return {
            "position": self._position.state() | {"loop_ends": self._epochs.state(), "ended": self.loop_has_ended},
            "plugins": plugins,
            "steps": self._steps.count,
            "made": [self._steps.made(optimizer) for _, optimizer in contents.optimizers],
            "epochs": self._steps.epochs,
            "metric": self.metric,
        }

    def own_of(self, found: Path) -> tuple[dict[str, Any], bool, float]:
        """What this rank had for itself, whether there were as many ranks, and how many of today's batches were one then."""
        manifest = folder.manifest(found)
        alike = manifest["world_size"] == self._session.world_size
        if not alike and self._session.is_main:
            warn(
                f"{found} was written by {manifest['world_size']} ranks, and there are {self._session.world_size} now: the order of the data "
                "goes on, the ranks' own random numbers begin anew"
            )
        name = self._own_file(alike)
        own = folder.read_file(found, name)
        shapes.refuse_unlike(found, name, own, written.RANK)
        return own, alike, 1.0 if alike else manifest["batches_per_step"] / self._batches_per_step

    def _own_file(self, alike: bool) -> str:
        return f"rank-{self._session.rank if alike else 0}.pt"

    def put_back(self, found: Path, own: dict[str, Any]) -> None:
        contents = self._finder.find()
        with self._session.in_parts():
            saved, weights, read_parts = saving.loaded(found, contents)
            with shapes.as_written(found, "training.pt"):
                state.check(contents, saved, weights, self._registered, f"checkpoint {found}")
            read_parts()
            state.put_weights(contents, weights)
            with shapes.as_written(found, "training.pt"):
                state.put_loose(contents, saved)
                state.put_training(contents, saved)
        state.put_registered(saved, self._registered)
        for name, plugin in self._stateful_plugins().items():
            if name in own["plugins"]:
                with shapes.as_written(found, "its own file"):
                    plugin.load_state_dict(decode(own["plugins"][name]))
        self.metric = own["metric"]
        self.end_is_saved = own["position"]["ended"]
        self._epochs.load(own["position"]["loop_ends"])
        self._steps.put(own["steps"], own["epochs"], dict(zip((one for _, one in contents.optimizers), own.get("made", ()), strict=False)))
        self._position.trains = self._steps.count > 0

    def _stateful_plugins(self) -> dict[str, Any]:
        plugins = self._session.bus.plugins()
        return {name: one for name, one in plugins if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")}

    @property
    def _batches_per_step(self) -> int:
        return 1 if self._session.options.get("batch") == "global" else self._session.world_size
