"""Runs synchronised backward passes, and averages the gradients of all trained parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import BackwardCall, Context, Unsupported, hookimpl
from torchbus.tree import as_list

from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import header
from torchbus_strategy.backward.before_step import StepAveraging
from torchbus_strategy.backward.engine import BackwardFunction, Roots, discard, fail
from torchbus_strategy.backward.header import DeviceHeader, Header, Slots
from torchbus_strategy.backward.loss_counts import LossCounts, scalar_loss
from torchbus_strategy.backward.reduction import Reduction, Reductions
from torchbus_strategy.checks.constants import EVERY, Constants
from torchbus_strategy.checks.divergence import HeaderCheck, RankFacts, refuse_unlike
from torchbus_strategy.checks.first_steps import look_at_first
from torchbus_strategy.compat import gradient as gradient_of
from torchbus_strategy.compat import (
    is_view,
    post_accumulate_hooks,
    requires_grad,
    tensor_hooks,
)
from torchbus_strategy.graph import is_parameter
from torchbus_strategy.loss.gradients import NONE, add_again, stash_gradients
from torchbus_strategy.loss.intermediate_values import (
    Part,
    has_parts,
    kind_of,
    weigh_parts,
    writable_parts,
)
from torchbus_strategy.loss.terms import Count, Number
from torchbus_strategy.options import Division, SyncOptions
from torchbus_strategy.parameters.averaging import LocalParameters, average
from torchbus_strategy.parameters.leaves import OtherLeaves
from torchbus_strategy.parameters.sync_buffers import SyncBuffers
from torchbus_strategy.parameters.trained import TrainedParameters
from torchbus_strategy.parameters.unsynchronised import Unsynchronised

DISCOVERY_BACKWARDS = 3
LOOKS = 3
NOT_DIVIDED = (
    "the session has not divided the last batch. A step has as many samples as all ranks drew if"
    " each drew its own (episodes, a replay buffer, a DistributedSampler, Accelerate); else all"
    " ranks computed the same thing (s.shard divides batches that the script makes itself)"
)


class GradientSync:
    """Answers ``run_backward`` with a synchronised backward pass.

    ``make_reductions`` makes the reductions of gradients. ``average`` averages unsynchronised
    gradients, which ``before_step`` finds. ``steps`` counts the steps of all optimizers so far.
    """

    def __init__(
        self,
        session: Context,
        options: SyncOptions,
        division: Division,
        make_reductions: Callable[[TrainedParameters], Reductions],
        average: Callable[[Sequence[Tensor], float], None] = average,
    ) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._options = options
        self._division = division
        self.steps = self._quiet_backwards = 0
        self._loss_note = ""
        self._buffers_vary = False
        self._may_differ = bool(session.bus.hook.parameters_may_differ(session=session))
        self._local = LocalParameters()
        self._known: set[int] = set()
        self._lock = threading.Lock()
        self._trained = TrainedParameters(session, options.sync_batchnorm, self._forget)
        self._leaves = OtherLeaves(session, self._trained.knows)
        self._buffers = SyncBuffers(session, options.sync_buffers, self._trained.known_models)
        self._reductions = make_reductions(self._trained)
        session.on_close.callback(self._reductions.drop)
        session.on_close.push(self._compare_at_end)
        self._counts = LossCounts(
            session,
            options.name,
            options.loss_reduction,
            options.loss_weight,
            division.weight,
            lambda leaf: is_parameter(leaf) or self._trained.knows(leaf),
        )
        self._constants = Constants(session, self._trained.optimizer_settings)
        self._check = HeaderCheck(
            session, self._facts, division.watch, self._constants, self._counts.look
        )
        self.before_step = StepAveraging(session, self._trained, self._local, average)
        unsynchronised = Unsynchronised(session, self._trained, self._local)
        session.bus.register(self._trained, f"{options.name}.trained")
        session.bus.register(unsynchronised, f"{options.name}.unsynchronised")
        session.bus.register(self.before_step, f"{options.name}.before_step")

    def _forget(self) -> None:
        """Drop what depends on the parameters, which have changed. All ranks call it."""
        self._reductions.drop()
        self._buffers.models_added()
        parameters = {id(parameter): parameter for parameter in self._trained.parameters}
        self._local.intersection_update(parameters)
        if self._job.backwards:  # gradients were not synchronised before an optimizer had them
            new = parameters.keys() - self._known
            self._local.update(key for key in new if parameters[key].grad is not None)
        self._known = set(parameters)
        self._quiet_backwards = 0

    def _has_local(self) -> bool:
        local = self._local
        return (bool(local) or local.discarded) and local.remain(self._trained.parameters)

    # Backward ------------------------------------------------------------------------------------

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: BackwardFunction) -> None:
        others = self._leaves.find(call)
        if not (others or self._trained.per_rank.found_any):
            return self._run(call, engine)
        with self._trained.per_rank.over_all_ranks(others):
            self._run(call, engine)
            self._leaves.fill()

    def _run(self, call: BackwardCall, engine: BackwardFunction) -> None:
        count = self._counts.of(call, self._has_local)
        if self._counts.is_usual(count) and self._run_usual(call, engine, count):
            return None
        if not call.sync or not self._trained.any_requires_gradients():
            return self._unsynchronised(call, engine, count)
        if not self._lock.acquire(blocking=False):
            raise Unsupported(
                "backward is called in two threads at once: call it in one, or use s.no_sync() in"
                " both"
            )
        parameters = self._trained.parameters
        held = strategy_engine.take_off(parameters)
        hooks = strategy_engine.TensorHooks.of(parameters)
        alone = hooks is not None and not (call.create_graph or count.left or self._local)
        separate = alone or (count.isolated and not call.create_graph)
        before = stash_gradients(parameters) if separate else []
        try:
            try:
                if hooks is not None and alone:
                    self._with_hooks(hooks, call, engine, count)
                else:
                    self._synchronised(call, engine, count)
            finally:
                if before:
                    add_again(before)
            self.before_step.synchronised()
        finally:
            self._job.go_on()
            self._lock.release()
            strategy_engine.put_back(held)
        if held:
            strategy_engine.user_hooks_run(held)

    def _run_usual(self, call: BackwardCall, engine: BackwardFunction, count: Count) -> bool:
        """Run a backward of a loss that counts what many earlier ones have counted.

        Returns False without doing anything if the call or its gradients need a closer look, or if
        a check is due.
        """
        loss, job, parameters = call.tensors, self._job, self._trained.parameters
        if (
            not (isinstance(loss, Tensor) and count.weight and job.backwards % EVERY)
            or (call.retain_graph or call.create_graph or call.inputs is not None)
            or (self._local or has_parts(loss) or loss.dim() or not loss.is_floating_point())
            or any(map(post_accumulate_hooks, parameters))
            or any(map(tensor_hooks, parameters))
            or set(map(type, map(gradient_of, parameters))) != NONE
            or not any(map(requires_grad, parameters))
            or not self._lock.acquire(blocking=False)
        ):
            return False
        try:
            reduction = self._reductions.current()
            job.wait_in("backward", job.backwards + 1)
            progress, position = job.backwards * 7 + self.steps, self._session.share.position
            shapes, inputs = reduction.buffers.shapes, self._division.watch.input_sum
            slots = header.numbers(count, progress, position, inputs, buffers=shapes)
            roots = Roots(*call.start(count.weight), call.retain_graph, None)
            self._reduce(reduction, engine, roots, slots, loss, count)
            self._finish_usual(reduction, call, count, loss)
            self.before_step.synchronised()
        finally:
            job.go_on()
            self._lock.release()
        return True

    def _finish_usual(
        self, reduction: Reduction, call: BackwardCall, count: Count, loss: Tensor
    ) -> None:
        reported = reduction.header
        mean = reported.receive()
        if not (reported.agrees and self._counts.is_settled(mean)):
            return self._finish(reduction, call, count, loss, [])
        self._job.count_backward()
        self._buffers.synchronise(reduction.buffers, True)
        self._check.compare(mean, reported.slots, True)  # type: ignore[arg-type]
        if self._options.sync_loss:
            self._give_loss(reported, call, loss, 1.0)
        self._after_sync()

    def _with_hooks(
        self,
        hooks: strategy_engine.TensorHooks,
        call: BackwardCall,
        engine: BackwardFunction,
        count: Count,
    ) -> None:
        """Run a backward, and call the hooks once its gradients are common to all ranks."""
        hooks.take_off()
        try:
            self._synchronised(call, engine, count)
        finally:
            hooks.put_back()
        hooks.run()

    def _unsynchronised(self, call: BackwardCall, engine: BackwardFunction, count: Count) -> None:
        """Run a backward without averaging its gradients.

        The next synchronised backward, or ``optimizer.step``, averages them.
        """
        tensors, gradients = call.start(1.0 if count.is_zero else count.weight)
        trained = self._trained.requiring_gradients()
        self._local.begin(trained)
        if count.is_zero:
            self._local.discarded = True
            roots = Roots(tensors, gradients, call.retain_graph, call.inputs)
            return fail(discard(engine, roots, trained)[1])
        engine(tensors, gradients, call.retain_graph, call.create_graph, inputs=call.inputs)

    def _synchronised(self, call: BackwardCall, engine: BackwardFunction, count: Count) -> None:
        reduction = self._reductions.current()
        self._job.wait_in("backward", self._job.backwards + 1)
        count = self._counts.weigh_terms(count)
        if call.create_graph:
            roots = Roots(*call.start(), True, call.inputs)
            weight = strategy_engine.backward(engine, reduction.parameters, roots, count)
            for tensor in [*self._trained.per_rank.tensors(), *self._leaves.current]:
                tensor.grad = tensor.grad if tensor.grad is None else tensor.grad * weight
            return
        loss = scalar_loss(call)
        if self._division.has_parts and not self._job.backwards:
            self._loss_note = look_at_first(self._session, loss, self._options.loss_reduction)
        slots = self._slots(loss, count, reduction.buffers.shapes)
        parts = writable_parts(self._session, call, loss, count) if self._options.sync_loss else []
        if parts and loss is not None:
            weighed = weigh_parts(self._session, parts, loss, count)
            header.add_parts(slots, kind_of(parts), weighed)
        roots, error = self._roots(reduction, call, engine, count)
        try:
            self._reduce(reduction, engine, roots, slots, loss, count, error)
        finally:
            error = None  # its traceback refers to this frame
        self._finish(reduction, call, count, loss, parts)

    def _reduce(
        self,
        reduction: Reduction,
        engine: BackwardFunction,
        roots: Roots,
        slots: Slots,
        loss: Tensor | None,
        count: Count,
        error: BaseException | None = None,
    ) -> None:
        try:
            reduction.backward(engine, roots, slots, loss, self._local, error)
        except BaseException:
            if reduction.has_reported:  # the gradients that were made are averaged
                self._divide(reduction, count)
            raise
        finally:
            error = None  # its traceback refers to this frame

    def _slots(self, loss: Tensor | None, count: Count, shapes: int) -> Slots:
        """Return this rank's metadata for the others."""
        share = self._session.share
        progress = self._job.backwards * 7 + self.steps
        constants = self._constants.number(loss, share.weight, progress)
        return header.numbers(
            count, progress, share.position, self._division.watch.input_sum, constants, shapes
        )

    def _roots(
        self, reduction: Reduction, call: BackwardCall, engine: BackwardFunction, count: Count
    ) -> tuple[Roots, BaseException | None]:
        """Return where this rank's backward starts, and the error that its graph raised, or None.

        A rank without samples backpropagates only the header, unless the engine needs every rank in
        the graph. The gradients of its graph are dropped.
        """
        is_zero = count.is_zero
        tensors, gradients = call.start(1.0 if is_zero else count.weight)
        roots = Roots(tensors, gradients, call.retain_graph, call.inputs)
        if is_zero and not self._division.runs_uncounted:
            none_found = Roots([], [], call.retain_graph, None)
            made, error = discard(engine, roots, reduction.parameters)
            reduction.header.dropped = made if self._session.share.weight else ()
            return none_found, error
        if call.inputs is None:
            return roots, None
        return roots._replace(inputs=[*as_list(call.inputs), reduction.header.parameter]), None

    def _finish(
        self,
        reduction: Reduction,
        call: BackwardCall,
        count: Count,
        loss: Tensor | None,
        parts: list[Part],
    ) -> None:
        """Give everything its value over all ranks, except the gradients, which have theirs."""
        self._job.count_backward()
        if self._local:
            self._local.difference_update(reduction.synchronised())
        reported = reduction.header
        mean = reported.receive()
        alike = reported.agrees or self._have_like_buffers(reported)
        self._buffers.synchronise(reduction.buffers, alike)
        scale = self._divide(reduction, count)
        self._check.take(reported, mean)
        if loss is not None and self._options.sync_loss:
            self._give_loss(reported, call, loss, scale)
        if parts:
            reported.give_parts(parts, scale)
            call.parts = [part.tensor for part in parts]
        self._after_sync()

    def _have_like_buffers(self, reported: Header) -> bool:
        """Whether all ranks' buffers have the same shapes.

        The host waits for a GPU in the first backwards, and always if they differed in these.
        """
        if (
            isinstance(reported, DeviceHeader)
            and not self._buffers_vary
            and self._job.backwards > LOOKS
        ):
            return True
        alike = header.buffers_agree(reported.mean(), reported.slots)
        self._buffers_vary |= not alike
        return alike

    def _divide(self, reduction: Reduction, count: Count) -> Number:
        """Divide averaged gradients by what the ranks counted. Returns the factor of the loss."""
        gradients_of = reduction.parameters
        others = self._leaves.current
        if others or self._trained.per_rank.found_any:
            gradients_of = [*gradients_of, *self._trained.per_rank.tensors(), *others]
        return self._counts.scale_gradients(reduction.header, count, gradients_of)

    def _give_loss(self, reported: Header, call: BackwardCall, loss: Tensor, scale: Number) -> None:
        if not (call.retain_graph or loss.is_leaf or is_view(loss)):
            reported.give_loss(loss, scale)

    def _after_sync(self) -> None:
        stream = self._division.stream
        if stream is not None and not self._session.random.is_split:
            self._session.random.split(stream)
        self._quiet_backwards += 1
        if self._quiet_backwards == 1 and not self._session.world.divides_anew:
            self._trained.look_for_dead()
        if self._quiet_backwards == DISCOVERY_BACKWARDS and self._trained.has_optimizers:
            self._session.end_discovery()

    # Other events --------------------------------------------------------------------------------

    def _facts(self) -> RankFacts:
        return RankFacts(self._job.backwards, self.steps, self._session.share.position)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.steps += 1

    @hookimpl
    def scheduler_metric(self, metric: Tensor | float) -> Tensor:
        return self._session.reduce(metric)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._check.finish()

    def _compare_at_end(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Compare the ranks' parameters. All ranks have ended their loops by then."""
        has_ended = error is None or (isinstance(error, SystemExit) and not error.code)
        if has_ended and not self._may_differ:
            refuse_unlike(self._session, self._trained.parameters, self._job.backwards)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        notes = [note for note in (self._loss_note, self._counts.note) if note]
        is_divided = self._session.share.indices or self._session.world.data.parts == 1
        if self._job.backwards and not is_divided:
            notes.append(NOT_DIVIDED)
        return {"notes": notes} if notes else {}
