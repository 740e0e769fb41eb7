"""Batches, backwards and steps that fail or are left out."""

from odd.table import Bad, loop


def leave_out(r, fail, remainder):
    """Leave out each third step, whose forward or backward fails."""
    for i, b in r.epochs():
        r.opt.zero_grad()
        try:
            r.back(r.loss(r.model, b, fail=fail if i % 3 == remainder else False))
        except Bad:
            continue
        r.opt.step()


@loop
def forward_fails(r):
    leave_out(r, "forward", 1)


@loop
def backward_fails(r):
    leave_out(r, "backward", 1)


@loop
def first_backward_fails(r):
    leave_out(r, "backward", 0)


@loop
def backward_fails_and_steps(r):
    """What the broken backward left is stepped with... after being cleared."""
    for i, b in r.epochs():
        try:
            r.back(r.loss(r.model, b, fail="backward" if i % 3 == 1 else False))
        except Bad:
            r.opt.zero_grad()
        r.opt.step()
        r.opt.zero_grad()


@loop
def backward_fails_uncleared(r):
    """What the broken backward has left stays."""
    for i, b in r.epochs():
        try:
            r.back(r.loss(r.model, b, fail="backward" if i % 3 == 1 else False))
        except Bad:
            continue
        r.opt.step()
        r.opt.zero_grad()


@loop
def step_fails(r):
    calls = []

    def hook(*_):
        calls.append(0)
        if len(calls) % 3 == 2:
            raise Bad

    note = r.opt.register_step_pre_hook(hook)
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        try:
            r.opt.step()
        except Bad:
            continue
    note.remove()


@loop
def skip_before_backward(r):
    for i, b in r.epochs():
        r.opt.zero_grad()
        loss = r.loss(r.model, b)
        if i % 3 == 1:
            continue
        r.back(loss)
        r.opt.step()


@loop
def skip_before_forward(r):
    for i, b in r.epochs():
        if i % 3 == 1:
            continue
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def skip_step_zero_first(r):
    for i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        if i % 3 == 1:
            continue
        r.opt.step()


@loop
def skip_step_zero_last(r):
    """The gradient waits for the next step."""
    for i, b in r.epochs():
        r.back(r.loss(r.model, b))
        if i % 3 == 1:
            continue
        r.opt.step()
        r.opt.zero_grad()


@loop
def step_without_backward(r):
    for i, b in r.epochs():
        r.opt.zero_grad()
        if i % 3 != 1:
            r.back(r.loss(r.model, b))
        r.opt.step()


@loop
def step_twice(r):
    for _i, b in r.epochs():
        r.opt.zero_grad()
        r.back(r.loss(r.model, b))
        r.opt.step()
        r.opt.step()


@loop
def stale_step(r):
    """A step with the gradient of the batch before."""
    for i, b in r.epochs():
        if i % 3 != 1:
            r.opt.zero_grad()
            r.back(r.loss(r.model, b))
        r.opt.step()
