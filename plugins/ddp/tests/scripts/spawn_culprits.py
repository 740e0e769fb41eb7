import functools
import threading

from spawn_head import data, make, train
from torchbus import session


def refuse(**extra):
    model, optimizer = make()
    for name, value in extra.items():
        setattr(model.transform, name, value)
    try:
        train(model, optimizer, data())
    except Exception as error:
        print(type(error).__name__, error)


def locals_of():
    class Inner:
        pass

    def helper():
        return None

    return Inner(), helper


if __name__ == "__main__":
    inner, helper = locals_of()
    refuse(fn=lambda x: x)
    refuse(table={"a": [1, helper]})
    refuse(thing=inner)
    refuse(part=functools.partial(max, key=lambda x: x))
    refuse(lock=threading.Lock())
    session(strategy="ddp_spawn", devices=2, accelerator="cpu")
    for function in (lambda: None, helper):
        try:
            session(strategy="ddp_spawn", devices=2, accelerator="cpu")(function)()
        except Exception as error:
            print(type(error).__name__, error)
    print(session(strategy="ddp_spawn", devices=2, accelerator="cpu")(data)().shape)
