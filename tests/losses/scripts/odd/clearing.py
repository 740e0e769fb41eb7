"""When gradients are cleared, and backwards that communicate nothing."""

from odd.table import loop


@loop
def plain(r):
    for _, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def new_loaders(r):
    for _, b in r.epochs(new=True):
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def zero_last(r):
    for _, b in r.epochs():
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.opt.zero_grad()


@loop
def zero_between(r):
    """After the forward, before the backward."""
    for _, b in r.epochs():
        loss = r.loss(r.model, b)
        r.opt.zero_grad()
        r.back(loss)
        r.opt.step()


@loop
def zero_by_model(r):
    for _, b in r.epochs():
        r.model.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def zero_by_hand(r):
    for _, b in r.epochs():
        r.back(r.loss(r.model, b))
        r.opt.step()
        for p in r.model.parameters():
            p.grad = None


@loop
def zero_in_place(r):
    for _, b in r.epochs():
        r.opt.zero_grad(set_to_none=False)
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def zero_twice(r):
    for _, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.opt.zero_grad()


@loop
def never_zero(r):
    for _, b in r.epochs():
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def zero_every_second(r):
    for i, b in r.epochs():
        if i % 2 == 0:
            r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def own_accumulation(r):
    for i, b in r.epochs():
        r.back(r.loss(r.model, b) / 2)
        if i % 2:
            r.opt.step()
            r.opt.zero_grad()


@loop
def own_no_sync(r):
    for i, b in r.epochs():
        with r.no_sync(i % 2 == 0):
            r.back(r.loss(r.model, b) / 2, **({"retain_graph": True} if i % 2 == 0 else {}))
        if i % 2:
            r.opt.step()
            r.opt.zero_grad()


@loop
def no_sync_and_step(r):
    """Each step right after a backward that has not communicated."""
    for _i, b in r.epochs():
        r.opt.zero_grad()
        with r.no_sync():
            r.back(r.loss(r.model, b), retain_graph=True)
        r.opt.step()


@loop
def no_sync_dropped(r):
    """Gradients of backwards without communication are cleared."""
    for i, b in r.epochs():
        if i % 3 == 1:
            with r.no_sync():
                r.back(r.loss(r.model, b), retain_graph=True)
            r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.opt.zero_grad()


@loop
def sync_then_no_sync(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        with r.no_sync():
            r.back(0.3 * r.loss(r.model, b), retain_graph=True)
        r.opt.step()


@loop
def no_sync_of_one(r):
    """Two models, of which one is trained without communication until its step."""
    other, opt = r.another()
    for i, b in r.epochs():
        with r.no_sync():
            r.back(r.loss(other, b), retain_graph=True)
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.opt.zero_grad()
        if i % 2:
            opt.step()
            opt.zero_grad()
    r.extra = other
