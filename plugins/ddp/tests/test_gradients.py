"""What torchbus-ddp does to gradients, on two ranks, with batches that depend on the rank."""

from __future__ import annotations

from pathlib import Path

from .gradients_script import facts, run

SCRIPTS = Path(__file__).parent / "scripts"


def test_gradients_and_loss_are_the_mean_over_ranks() -> None:
    found = facts(
        run("""
        net = nn.Linear(3, 1)
        whole = nn.functional.linear(data.reshape(16, 3), net.weight.detach().clone().requires_grad_(), net.bias.detach())
        loss = net(data[s.rank]).square().mean()
        loss.backward()
        found["loss"] = [loss.item(), whole.square().mean().item()]
        found["equal"] = torch.equal(*s.all_gather(net.weight.grad))
    """)
    )
    assert abs(found["loss"][0] - found["loss"][1]) < 1e-12
    assert found["equal"]


def test_none_stays_none_where_no_rank_made_a_gradient() -> None:
    found = facts(
        run("""
        used, by_one, unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        optimizer = torch.optim.SGD([*used.parameters(), *by_one.parameters(), *unused.parameters()], lr=0.1)
        hidden = used(data[s.rank])
        (by_one(hidden) if s.rank == 1 else hidden).square().mean().backward()
        found["none"] = [layer.weight.grad is None for layer in (used, by_one, unused)]
        found["equal"] = torch.equal(*s.all_gather(by_one.weight.grad))
        found["zero"] = not by_one.weight.grad.any().item()
    """)
    )
    assert found == {"none": [False, False, True], "equal": True, "zero": False}


COUNTED = (SCRIPTS / "gradients_counted.py").read_text()


def test_a_group_that_no_rank_reaches_is_not_sent() -> None:
    found = facts(
        run(
            """
        big, small = nn.Linear(512, 300), nn.Linear(300, 1)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (big, small)]
        x = torch.randn(4, 512)
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            hidden = big(x)
            counter.elements = 0
            small(hidden.detach()).mean().backward()
            found["small"], found["none"] = counter.elements, big.weight.grad is None
            counter.elements = 0
            small(hidden).mean().backward()
            found["both"] = counter.elements
    """,
            options="counter",
            before=COUNTED,
        )
    )
    assert found["both"] >= 512 * 300 + 300 + 301
    assert 301 <= found["small"] < 512 * 300
    assert found["none"]


def test_the_loss_is_left_alone_where_writing_it_would_do_harm() -> None:
    found = facts(
        run("""
        net = nn.Linear(3, 1)
        net(data[s.rank]).mean().backward()  # from here on each rank has its own random numbers

        def differs(loss, **options):
            loss.backward(**options)
            return not torch.equal(*s.all_gather(loss))

        found["plain"] = differs(net(data[s.rank]).square().mean())
        found["root"] = differs(net(data[s.rank]).square().mean().sqrt())
        found["retained"] = differs(net(data[s.rank]).square().mean(), retain_graph=True)
        found["view"] = differs(net(data[s.rank]).square().mean(0)[0])
        rows = net(data[s.rank]).square().mean(0)
        base = rows.clone().detach()
        rows[0].backward()
        found["base"] = torch.equal(base, rows.detach())
    """)
    )
    assert found == {"plain": False, "root": False, "retained": True, "view": True, "base": True}


def test_sync_loss_false_leaves_every_loss_local() -> None:
    found = facts(
        run(
            """
        loss = nn.Linear(3, 1)(data[s.rank]).square().mean()
        loss.backward()
        found["differs"] = not torch.equal(*s.all_gather(loss))
    """,
            options="sync_loss=False",
        )
    )
    assert found["differs"]


def test_gradients_that_were_assigned_are_averaged_at_the_step() -> None:
    found = facts(
        run("""
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        for parameter, gradient in zip(net.parameters(), torch.autograd.grad(net(data[s.rank]).square().mean(), net.parameters())):
            parameter.grad = gradient
        optimizer.step()
        found["equal"] = torch.equal(*s.all_gather(net.weight))
    """)
    )
    assert found["equal"]


def test_gradients_of_a_body_that_were_assigned_after_backward_are_averaged() -> None:
    """The smallest parameter, of the head, has the gradient of the backward."""
    found = facts(
        run("""
        body, head = nn.Linear(3, 4), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1.0)
        loss = head(body(data[s.rank])).square().mean()
        mine = torch.autograd.grad(loss, body.parameters(), retain_graph=True)
        loss.backward()
        for parameter, gradient in zip(body.parameters(), mine):
            parameter.grad = gradient
        optimizer.step()
        found["equal"] = torch.equal(*s.all_gather(body.weight))
    """)
    )
    assert found["equal"]


def test_a_rank_without_samples_adds_exact_zeros() -> None:
    """Its own gradient, NaN here, is dropped, and input gradients are still there for the loop to
    read.
    """
    found = facts(
        run("""
        from torchbus.world import Share
        net = nn.Linear(3, 1)
        x = data[0].clone().requires_grad_()
        s._context.share = Share(weight=2.0 * (s.rank == 0))
        loss = (net(x) * (1.0 if s.rank == 0 else float("nan"))).mean()
        loss.backward()
        alone = torch.autograd.grad(net(data[0]).mean(), net.weight)[0]
        found["equal"] = torch.equal(*s.all_gather(net.weight.grad))
        found["exact"] = torch.allclose(net.weight.grad, alone, atol=1e-15)
        found["input"] = x.grad is not None
        found["loss"] = loss.isfinite().item()
    """)
    )
    assert found == {"equal": True, "exact": True, "input": True, "loss": True}


def test_buffers_are_rank_0s_after_backward_even_if_replaced() -> None:
    found = facts(
        run("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.line = nn.BatchNorm1d(3), nn.Linear(3, 1)
                self.register_buffer("codebook", torch.zeros(3))

            def forward(self, x):
                self.codebook = self.codebook + x.detach().mean(0)
                return self.line(self.norm(x))

        net = Net()
        for _ in range(2):
            net(data[s.rank])
            net(data[s.rank] * 2).mean().backward()
        found["equal"] = [torch.equal(*s.all_gather(buffer)) for buffer in net.buffers()]
        found["moved"] = net.norm.num_batches_tracked.item()
    """)
    )
    assert found == {"equal": [True] * 4, "moved": 4}


def test_sync_batchnorm_needs_gpus() -> None:
    result = run("pass", options="sync_batchnorm=True", fails=True)
    assert "sync_batchnorm=True needs GPUs" in result.stderr


def test_the_model_is_as_it_was() -> None:
    found = facts(
        run("""
        import copy, io
        net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
        before = (type(net), repr(net), list(net.state_dict()), list(net.__dict__))
        calls = []
        net.register_forward_hook(lambda *_: calls.append("forward"))
        net[0].weight.register_hook(lambda gradient: calls.append("gradient"))
        net(data[s.rank]).mean().backward()
        net.note = "mine"
        found["calls"] = calls
        found["same"] = before == (type(net), repr(net), list(net.state_dict()), list(net.__dict__)[:-1])
        net._forward_hooks.clear()
        buffer = io.BytesIO()
        torch.save(net, buffer)
        buffer.seek(0)
        read = torch.load(buffer, weights_only=False)
        found["saved"] = all(torch.equal(a, b) for a, b in zip(read.parameters(), net.parameters()))
        found["copied"] = copy.deepcopy(net)(data[0]).shape == (8, 1)
    """)
    )
    assert found == {"calls": ["forward", "gradient"], "same": True, "saved": True, "copied": True}


def test_a_buffer_of_the_size_of_a_share_stays_each_ranks_own() -> None:
    found = facts(
        run("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(3, 1)
                self.register_buffer("last", torch.zeros(1, 1))
                self.register_buffer("mean", torch.zeros(1))

            def forward(self, x):
                self.last = self.body(x).detach()
                self.mean = self.last.mean(0)
                return self.body(x)

        net = Net()
        for _ in range(2):
            net(data.reshape(16, 3)[: 2 + s.rank]).square().mean().backward()
        found["rows"] = s.all_gather_object(len(net.last))
        found["equal"] = torch.equal(*s.all_gather(net.mean))
    """)
    )
    assert found == {"rows": [2, 3], "equal": True}


def test_a_graph_of_the_gradients_of_two_dtypes() -> None:
    found = facts(
        run("""
        first, last = nn.Linear(3, 3).float(), nn.Linear(3, 1).double()
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        loss = last(first(data[s.rank].float()).double()).square().mean()
        loss.backward(create_graph=True)
        grads = [one.grad.detach() for one in (first.weight, last.weight)]
        found["dtypes"] = [str(one.dtype) for one in grads]
        found["equal"] = all(torch.equal(*s.all_gather(one)) for one in grads)
    """)
    )
    assert found == {"dtypes": ["torch.float32", "torch.float64"], "equal": True}
