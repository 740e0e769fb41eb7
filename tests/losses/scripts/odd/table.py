"""All loops, by name."""

LOOPS = {}


class Bad(Exception):
    """What a loop catches, and goes on."""


def loop(function):
    LOOPS[function.__name__] = function
    return function
