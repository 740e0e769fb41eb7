import gc
import sys
import threading
import time

from torchbus_launch.threads import calls_of

sys.setswitchinterval(1e-6)
gc.set_threshold(7, 1, 1)  # what is read makes objects, and so collects
main, ends, reads = threading.get_ident(), time.monotonic() + 6, [0]


class Cycle:
    def __del__(self):
        time.sleep(0)  # lets the other thread go on


def watch():
    while time.monotonic() < ends:
        reads[0] += len(calls_of(main)) > 0


def count(number):
    for value in range(number):
        yield {"value": value}


def begun(depth):
    if depth:
        return begun(depth - 1)
    values = count(5)
    next(values)
    return values


def go_on(depth, values):
    return go_on(depth - 1, values) if depth else next(values, None)


threads = [threading.Thread(target=watch) for _ in range(2)]
for thread in threads:
    thread.start()
number = 0
while time.monotonic() < ends:
    number += 1
    cycle = Cycle()
    cycle.itself = cycle
    del cycle
    go_on(number % 11, begun(number % 7))
    several = [{} for _ in range(20)]
    for _ in range(30):
        begun(number % 5)
    all(len({"value": value}) == 1 for value in range(5))
    exec("several = [{} for _ in range(3)]\nclass Body: attribute = {}", {})
for thread in threads:
    thread.join()
assert gc.isenabled() and reads[0] > 100, reads
