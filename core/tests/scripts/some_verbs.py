from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

heard = []


class Verbs:
    verbs = ("double", "number", "refused")

    @hookimpl
    def session_start(self):
        heard.append("start")

    @hookimpl
    def after_backward(self):
        heard.append("backward")

    def double(self, value: int, *, times: int = 1) -> int:
        """Twice the value."""
        return 2 * value * times

    @property
    def number(self):
        return 42

    @property
    def refused(self):
        raise UsageError("not now")


class Misspelled:
    verbs = ("misspelled", "wrong")
    wrong = 1

    @hookimpl
    def after_bakward(self, call):
        pass

    def misspelled(self):
        return 3


class Fails:
    verbs = ("fails",)

    @hookimpl
    def session_start(self, session):
        raise RuntimeError("no disk")

    def fails(self):
        return 3
