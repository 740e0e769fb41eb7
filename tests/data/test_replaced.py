"""A model and its optimizer, in whose place the loop puts others."""

from __future__ import annotations

from ranks import facts


def test_a_model_that_another_has_taken_the_place_of_is_synchronised_no_more() -> None:
    """``model, optimizer = make()`` in a loop: the earlier model goes when the new one is there."""
    found = facts("""
        def make():
            model = nn.Linear(3, 2)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        found["tensors"] = []
        for fold in range(3):
            model, optimizer = make()
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            (trained,) = [one for name, one in s._context.bus.plugins() if name == "ddp.trained"]
            found["tensors"].append(len(trained.parameters))
        found["alike"] = torch.equal(*s.all_gather(model.weight.detach()))
    """)
    assert found == {"tensors": [2, 2, 2], "alike": True}
