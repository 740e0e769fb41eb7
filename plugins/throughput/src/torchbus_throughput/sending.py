"""The names under which the rates of a window are logged, and how they are reduced over ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torchbus.plugin import Context

from torchbus_throughput.windows import Part, known, per, rates

PREFIX = "throughput/"
ALWAYS = ("samples_per_sec",)


class Sending:
    """Hands rates to torchbus-log, whose next log point reduces them over ranks.

    ``names``: the rates to send, the same on all ranks. With several ranks, one that is not known
    here is sent as NaN: ranks that log different names would differ.
    """

    def __init__(self, session: Context, names: Collection[str]) -> None:
        self._session = session
        self._names = names

    def send(self, step: int, steps: int, own: Part, device: Part) -> None:
        """Send a window that ends at ``step``.

        ``own``: what this rank adds to the sum. ``device``: what its device has done.
        """
        if not self._session.bus.heard("log_metrics"):
            return
        here = {f"device/{name}": value for name, value in self._rates(device).items()}
        here["steps_per_sec"] = per(steps, device.seconds)
        here = {name: value for name, value in here.items() if known(value) is not None}
        mine = self._rates(own)
        joules = {name: mine.pop(name) for name in list(mine) if name == "joules_per_sample"}
        # the mean over ranks, of as many times a part as there are ranks, is the sum of the parts
        times = {name: 1 if name == "mfu" else self._session.world_size for name in mine}
        self._log(here, step=step)
        self._log(
            {name: value * times[name] for name, value in mine.items()},
            step=step,
            sync_dist=True,
            batch_size=1.0,
        )
        self._log(joules, step=step, sync_dist=True, batch_size=own.samples)

    def _rates(self, part: Part) -> dict[str, float]:
        found = rates([part])
        return {
            name: value
            for name, value in found.items()
            if name in self._names and (self._session.world_size > 1 or known(value) is not None)
        }

    def _log(self, values: Mapping[str, float], **options: object) -> None:
        if values:
            self._session.bus.hook.log_metrics(
                metrics={PREFIX + name: value for name, value in values.items()}, options=options
            )
