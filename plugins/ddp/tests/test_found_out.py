"""Ranks that drift apart, and backwards that can't be told apart, under ddp."""

from __future__ import annotations

import pytest

from .gradients_script import facts, run


def test_a_parameter_that_one_rank_changes_alone_is_found_out() -> None:
    result = run(
        """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            net(data[s.rank]).mean().backward()
            optimizer.step()
            if s.rank == 1 and step == 1:
                with torch.no_grad():
                    net.weight.mul_(2)
    """,
        fails=True,
    )
    assert result.status == 1
    assert "RanksDiverged: a parameter is not the same on all ranks any more" in result.stderr


def test_steps_that_one_rank_skips_are_found_out() -> None:
    result = run(
        """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        for step in range(4):
            net(data[s.rank]).mean().backward()
            if s.rank == 0 or step != 1:
                optimizer.step()
    """,
        fails=True,
    )
    assert result.status == 1
    assert "optimizer steps: 2 on rank 0, 1 on rank 1" in result.stderr


def test_backward_in_two_threads_at_once_is_refused() -> None:
    result = run("""
        import threading
        net = nn.Linear(3, 1)
        net(data[s.rank]).mean().backward()
        inside, refusals = threading.Event(), []
        loss = net(data[s.rank]).mean()
        slow = net(data[s.rank])
        slow.register_hook(lambda gradient: (inside.set(), thread.join())[0])

        def other():
            inside.wait()
            try:
                loss.backward()
            except Exception as error:
                refusals.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        slow.mean().backward()
        thread.join()
        found["refusals"] = refusals
    """)
    assert "two threads at once" in facts(result)["refusals"][0]


def test_a_step_after_a_backward_that_one_rank_has_left_out_is_found_out() -> None:
    result = run(
        """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss = net(data[s.rank]).mean()
            if s.rank == 0 or step != 2:
                loss.backward()
            optimizer.step()
    """,
        fails=True,
    )
    assert result.status == 1
    assert "optimizer steps: 2 on rank 0, 3 on rank 1" in result.stderr


@pytest.mark.slow
def test_ranks_that_wait_in_a_step_and_in_a_backward_are_found_out() -> None:
    result = run(
        """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(data[s.rank]).mean()
        if s.rank == 1:
            loss.backward()
        else:
            for parameter, gradient in zip(
                net.parameters(), torch.autograd.grad(loss, list(net.parameters()))
            ):
                parameter.grad = gradient
            optimizer.step()
    """,
        fails=True,
    )
    assert result.status == 1
    assert (
        "RanksDiverged: deadlock: the ranks wait for each other in different places"
        in result.stderr
    )
    assert "rank 0 waits in SGD.step() after backward 0" in result.stderr
    assert "rank 1 waits in backward 1" in result.stderr


def test_a_parameter_that_is_put_into_a_group_by_hand_is_synchronised() -> None:
    found = facts(
        run("""
        points = nn.Parameter(data[0].clone())
        optimizer = torch.optim.SGD([points], lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            (points - data[s.rank].mean()).square().mean().backward()
            optimizer.step()
            if step == 1:
                points = nn.Parameter(torch.cat([points.detach(), points.detach()[:2]]))
                optimizer.param_groups[0]["params"][0] = points
        found["equal"] = torch.equal(*s.all_gather(points.detach()))
    """)
    )
    assert found == {"equal": True}


def test_parameters_that_differ_after_the_last_backward_are_found_out() -> None:
    result = run(
        """
        net = nn.Linear(3, 1)
        net(data[s.rank]).mean().backward()
        with torch.no_grad():
            net.weight.add_(s.rank)
    """,
        fails=True,
    )
    assert result.status == 1
    assert "RanksDiverged: a parameter is not the same on all ranks any more" in result.stderr
