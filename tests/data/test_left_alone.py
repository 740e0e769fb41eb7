"""On several ranks: what others have put over torch's functions is called, and what is not adopted
is left alone.
"""

from __future__ import annotations

from ranks import facts

OVER_BACKWARD = """
calls = []
real = torch.autograd.backward
def backward(tensors, *given, **named):
    calls.append(len(tensors))
    return real(tensors, *given, **named)
torch.autograd.backward = backward
"""


def test_what_was_put_over_backward_before_the_block_is_called() -> None:
    found = facts(
        """
        net = nn.Linear(2, 1)
        for _ in range(3):
            net(torch.ones(4, 2) * (s.rank + 1)).mean().backward()
        found["calls"] = s.all_gather_object(calls)
        found["gradients"] = s.all_gather_object(net.weight.grad.tolist())
        """,
        before=OVER_BACKWARD,
    )
    assert found == {"calls": [[2] * 3] * 2, "gradients": [[[4.5, 4.5]]] * 2}


def test_lazy_parameters_that_are_not_adopted_are_no_ones_business() -> None:
    found = facts(
        """
        net = nn.Sequential(nn.LazyLinear(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.step()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        found["shape"] = list(net[0].weight.shape)
        """,
        options="capture=False",
    )
    assert found == {"shape": [3, 4]}
