import atexit
import json
import multiprocessing
import pickle
import sys

import neighbour


class Square:
    def __init__(self, value: int):
        self.value = value * value


def value(square):
    return square.value


def at_end():
    pickle.dumps(Square(2))


if __name__ == "__main__":
    atexit.register(at_end)
    squares = None
    if __spec__ is None or not __spec__.name.endswith("__main__"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            squares = pool.map(value, map(Square, range(4)))
    print(
        json.dumps(
            [
                sys.argv,
                sys.path[0],
                __name__,
                __file__,
                __spec__ and __spec__.name,
                __package__ or "",
                __doc__,
                neighbour.there,
                squares,
                str(Square.__init__.__annotations__),
            ]
        )
    )
