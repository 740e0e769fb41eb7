"""``s.on(...)`` and filters on several ranks, beside other plugins, and in a run that resumes."""

from __future__ import annotations

from pathlib import Path

from ranks import facts, run

LOOP = """
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(24, 3))
"""


def test_only_rank_0_hears_and_all_ranks_train_alike() -> None:
    found = facts(
        """
        heard = []
        s.on("after_optimizer_step", lambda: heard.append(s.global_step), every=2, main_only=True)
        s.on("after_optimizer_step", lambda: heard.append("once"), once=True, every=3)
        for (x,) in DataLoader(data, batch_size=3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        found["heard"] = s.all_gather_object(heard)
        """,
        before=LOOP,
    )
    assert found == {"heard": [[2, "once", 4], ["once"]]}


def test_final_gradients_come_after_synchronisation_and_clipping() -> None:
    """The script's function hears what the optimizer uses, last of all listeners."""
    found = facts(
        """
        norms = []
        def norm():
            return torch.stack([p.grad.norm() for p in net.parameters()]).norm().item()
        s.on("gradients_ready", lambda: norms.append(norm()))
        for (x,) in DataLoader(data, batch_size=3):
            optimizer.zero_grad()
            (100 * net(x).square().mean()).backward()
            optimizer.step()
        found["norms"] = s.all_gather_object(norms)
        found["last"] = [s._context.bus.order(event)[-1] for event in ("gradients_ready",)]
        """,
        options="gradient_clip_val=0.5",
        before=LOOP,
    )
    norms = found["norms"]
    assert norms[0] == norms[1] and len(norms[0]) == 4
    assert all(abs(one - 0.5) < 1e-6 for one in norms[0])
    assert found["last"] == ["s.on gradients_ready 1"]


def test_a_run_that_resumes_hears_the_steps_of_one_without_interruption(tmp_path: Path) -> None:
    def heard(folder: str, stop_after: int) -> list[int]:
        result = run(
            f"""
            heard = []
            s.on("after_optimizer_step", lambda: heard.append(s.global_step), every=3)
            for epoch in s.epochs(3):
                for (x,) in DataLoader(data, batch_size=3):
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
                    time.sleep(0.26)  # ranks agree on leaving four times a second
                    if s.global_step == {stop_after}:
                        s.save_and_leave()
            found["heard"] = heard
            """,
            options=f"checkpoint={str(tmp_path / folder)!r}",
            before=LOOP + "import atexit, time\natexit.register(lambda: print(json.dumps(heard)))",
        )
        return list(map(int, result.stdout.strip().splitlines()[-1].strip("[]").split(",")))

    whole = heard("whole", 0)
    assert whole == [3, 6, 9, 12]
    assert heard("parts", 5) == whole[:2]
    assert heard("parts", 0) == whole  # the checkpoint holds the list, too
