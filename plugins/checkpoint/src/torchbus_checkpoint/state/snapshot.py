"""Writes a session's state to a checkpoint, and restores it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Context, UsageError, warn

from torchbus_checkpoint._compat import mark_stepped
from torchbus_checkpoint.disk import choice, folder
from torchbus_checkpoint.disk.formats import RunProgress
from torchbus_checkpoint.disk.writer import CheckpointWriter, Content
from torchbus_checkpoint.loop.contents import LoopContents, ObjectFinder
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.steps import Epochs, LoopSteps
from torchbus_checkpoint.options import CheckpointOptions
from torchbus_checkpoint.state import checks, common, forms
from torchbus_checkpoint.state.edits import Edits
from torchbus_checkpoint.state.plain import State, Stateful, decode, encode, is_stateful
from torchbus_strategy.collectives import in_parts


class LoopSnapshot:
    """The loop's objects and position, and the plugins' states. All ranks must call each method."""

    def __init__(
        self,
        session: Context,
        options: CheckpointOptions,
        finder: ObjectFinder,
        position: LoopPosition,
        steps: LoopSteps,
        epochs: Epochs,
    ) -> None:
        self._session = session
        self._options = options
        self._finder = finder
        self._position = position
        self._steps = steps
        self._epochs = epochs
        self._writer = CheckpointWriter(
            session, options.async_save, hosts_share=options.url is None
        )
        self._registered: dict[str, Stateful] = {}
        self.written: Callable[[], None] = lambda: None
        self.metric: float | None = None
        self.loop_has_ended = False
        self.loop_was_left = False
        self.end_is_saved = False

    def register(self, name: str, thing: object) -> None:
        """Save the state of one more object."""
        if not is_stateful(thing):
            raise UsageError(
                f"s.register({name!r}, {type(thing).__name__}): it needs the methods state_dict()"
                " and load_state_dict(state)"
            )
        if name in self._registered and self._registered[name] is not thing:
            raise UsageError(
                f"s.register({name!r}): this name is registered already, for another object. Use"
                " another name"
            )
        self._registered[name] = thing

    # Write ---------------------------------------------------------------------------------------

    def write(self, final: Path) -> None:
        """Write a checkpoint. If it is automatic, then delete those that ``keep`` excludes."""
        contents = self._finder.find_at_end() if self.loop_has_ended else self._finder.find()
        is_automatic = final.parent == self._options.folder and not self._session.dry_run
        self._position.saves()
        self._writer.write(
            final, self._content(contents), self._prune if is_automatic else lambda: None
        )

    def _content(self, contents: LoopContents) -> Content:
        self._refuse_gradients_in_parts(contents)
        registered = common.of_registered(self._registered)
        with in_parts(self._session):
            weights = common.weights(contents)
            training = common.training(contents, self._gradients_of, registered)
            checks.warn_of_absent_states(contents.optimizers, self._session.steps)
            held = checks.held(weights, training)
            shared, groups = choice.files(
                self._options.in_parts, weights, training, self._session.is_main
            )
        return Content(shared, self._local_state(contents), groups, held, self._facts())

    def _refuse_gradients_in_parts(self, contents: LoopContents) -> None:
        """Raise UsageError in an open window, if a rank has the gradients of only some layers."""
        in_parts = any(
            getattr(plugin, "gradients_in_parts", False)
            for _, plugin in self._session.bus.plugins()
        )
        if in_parts and any(self._steps.is_in_window(one) for _, one in contents.optimizers):
            raise UsageError(
                "a checkpoint in the middle of a window of accumulation: under this strategy no"
                " rank has all gradients; save it after optimizer.step()"
            )

    def _gradients_of(self, optimizer: Optimizer) -> list[Tensor | None] | None:
        """Return the gradients, or None if the next step can't need them. All ranks call this."""
        if not self._steps.has_gradients(optimizer):
            return None
        reported: list[Tensor | None] | None = self._session.bus.hook.whole_gradients(
            optimizer=optimizer
        )
        return common.gradients(optimizer) if reported is None else reported

    def _facts(self) -> RunProgress:
        return {
            "step": self._steps.count,
            "epoch": self._steps.epochs,
            "world_size": self._session.world_size,
            "metric": self._metric_now,
            "batches_per_step": self._batches_per_step,
        }

    def _local_state(self, contents: LoopContents) -> State:
        """Return the states that differ from rank to rank."""
        plugins = {
            name: encode(plugin.state_dict(), f"plugin {name}")
            for name, plugin in self._stateful_plugins().items()
        }
        loop = {"loop_ends": self._epochs.state(), "ended": self.loop_has_ended}
        loop |= {"left": True} if self.loop_was_left else {}
        return {
            "position": self._position.state() | loop,
            "plugins": plugins,
            "steps": self._steps.count,
            "made": [self._session.steps.of(optimizer) for _, optimizer in contents.optimizers],
            "in_step": [self._session.steps.has_stepped(one) for _, one in contents.optimizers],
            "epochs": self._steps.epochs,
            "metric": self._metric_now,
            "since": self._finder.since,
        }

    @property
    def _metric_now(self) -> float | None:
        """The monitored value of the present weights, or None if a step has followed the value, or
        the loop has created its next model.
        """
        is_mine = self._steps.judged and self._steps.count > self._finder.since
        return self.metric if is_mine else None

    def write_value(self, final: Path) -> None:
        """Add the monitored value to the checkpoint of the present weights, if it exists."""
        self.wait()
        if self._session.is_main and folder.put_metric(final, self._metric_now):
            self._prune()

    def _prune(self) -> None:
        assert self._options.folder is not None
        self.written()
        choice.prune(
            self._options.folder,
            self._options.keep,
            self._options.monitor is not None,
            self._options.mode,
            self._finder.since,
        )

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._writer.wait()

    # Put back ------------------------------------------------------------------------------------

    def local_of(self, found: Path) -> tuple[State, bool, float]:
        """Return (this rank's state, whether the ranks are as before, old batch size / new).

        If they are not as before, every rank gets the state of rank 0.
        """
        manifest = folder.manifest(found)
        same_ranks = manifest["world_size"] == self._session.world_size
        alike = same_ranks and manifest["batches_per_step"] == self._batches_per_step
        if not same_ranks and self._session.is_main:
            warn(
                f"{found} was written by {manifest['world_size']} ranks, and there are"
                f" {self._session.world_size} now: the order of the data continues, and the ranks'"
                " own random numbers start again"
            )
        name = f"rank-{self._session.rank if alike else 0}"
        mine: State = folder.read_file(found, name)
        forms.refuse_unlike(found, name, mine, forms.RANK)
        mine["metric"] = manifest["metric"]  # may have been added after the file was written
        return mine, alike, 1.0 if alike else manifest["batches_per_step"] / self._batches_per_step

    def put_back(self, found: Path, local: State) -> None:
        """Restore everything except the position. ``local`` is this rank's state."""
        self._session.bus.hook.before_restore()
        contents = self._finder.find()
        with in_parts(self._session):
            saved = self._put_shared(found, contents)
        common.put_registered(saved, self._registered)
        for name, plugin in self._stateful_plugins().items():
            if name in local["plugins"]:
                with forms.as_written(found, f"rank-{self._session.rank}"):
                    plugin.load_state_dict(decode(local["plugins"][name]))
        self._put_counts(contents, local)

    def put_weights(self, found: Path) -> None:
        """Restore only the weights of the models."""
        self._session.bus.hook.before_restore()
        contents = self._finder.find_at_end()
        with in_parts(self._session):
            saved, weights, read_parts = choice.loaded(found, contents)
            read_parts()
            with forms.as_written(found, choice.TRAINING):
                checks.check_models(contents, saved, weights, f"checkpoint {found}")
                common.put_weights(contents, weights)
                common.put_loose(contents, saved)

    def _put_shared(self, found: Path, contents: LoopContents) -> State:
        saved, weights, read_parts = choice.loaded(found, contents)
        with forms.as_written(found, choice.TRAINING):
            checks.check(contents, saved, weights, self._registered, f"checkpoint {found}")
        read_parts()
        common.put_weights(contents, weights)
        with forms.as_written(found, choice.TRAINING):
            common.put_loose(contents, saved)
            self._put_training(contents, saved, f"checkpoint {found}")
        return saved

    def _put_training(self, contents: LoopContents, saved: State, where: str) -> None:
        edits = Edits(contents.built)
        common.put_training(contents, saved, self._take_gradients, edits, where)
        if self._session.is_main and not self._session.dry_run:  # a trial shortens schedules
            for words in edits.words:
                warn(words)

    def _take_gradients(self, optimizer: Optimizer, gradients: list[Tensor | None]) -> bool:
        """Offer restored gradients to an engine. Returns True if the engine stores them."""
        hook = self._session.bus.hook
        return hook.put_gradients(optimizer=optimizer, gradients=gradients) is True

    def _put_counts(self, contents: LoopContents, local: State) -> None:
        self.metric = local["metric"]
        self.end_is_saved = local["position"]["ended"]
        self._epochs.load(local["position"]["loop_ends"])
        self._steps.put(local["epochs"], self.metric is not None)
        optimizers = [one for _, one in contents.optimizers]
        made = list(zip(optimizers, local.get("made", ()), strict=False))
        stepped = [
            one for one, has in zip(optimizers, local.get("in_step", ()), strict=False) if has
        ]
        mark_stepped(optimizer for optimizer, count in made if count)
        self._session.steps.go_on(local["steps"], made, stepped)
        self._finder.since = local.get("since", 0)
        self._position.trains = self._steps.count > 0

    def _stateful_plugins(self) -> dict[str, Stateful]:
        return {name: one for name, one in self._session.bus.plugins() if is_stateful(one)}

    @property
    def _batches_per_step(self) -> int:
        is_global = self._session.options.get("batch") == "global"
        return 1 if is_global else self._session.world.data.parts
