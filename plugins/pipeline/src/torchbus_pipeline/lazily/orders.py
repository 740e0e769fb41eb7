"""Which rank computes what when, for each number of micro-batches that comes up."""

from __future__ import annotations

from torchbus_pipeline._compat import Order, interleaved_order
from torchbus_pipeline.model.cut import Cut
from torchbus_pipeline.team import Team


class Orders:
    """What this rank computes in which order.

    With one stage on each rank it is the order of torch's ``Schedule1F1B``, else torch's
    ``ScheduleInterleaved1F1B``.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._known: dict[tuple[int, int], Order] = {}

    def of(self, cut: Cut, count: int) -> Order | None:
        """None if the schedule can't have so few micro-batches: a small batch at the end."""
        if count < cut.stages or count % max(1, count // cut.places):
            return None
        key = (cut.stages, count)
        if key not in self._known:
            self._known[key] = (
                one_forward_one_backward(cut.own[0], cut.stages, count)
                if cut.stages == cut.places
                else interleaved_order(cut.own, cut.stages, count, self._team.group)
            )
        return self._known[key]


def one_forward_one_backward(stage: int, stages: int, count: int) -> Order:
    """The order of torch's ``Schedule1F1B``.

    >>> [f"{kind}{index}" for kind, _, index in one_forward_one_backward(0, 2, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    ahead = min(count, stages - stage)
    order: Order = [("F", stage, index) for index in range(ahead)]
    for index in range(count):
        order.append(("B", stage, index))
        if index + ahead < count:
            order.append(("F", stage, index + ahead))
    return order
