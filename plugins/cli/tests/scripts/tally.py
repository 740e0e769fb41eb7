from torchbus.bus.base import hookimpl


class Tally:
    @hookimpl
    def session_end(self):
        pass

    @hookimpl
    def launch(self):
        pass


class Helper:
    @hookimpl(specname="after_backward")
    def noted(self):
        pass

    def before_backward(self):
        "not marked"


def count(argv):
    """Count the words.

    And more."""
    print(argv)
    return len(argv)
