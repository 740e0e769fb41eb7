"""(d) Waits of the host in a steady step: by torch's own debug mode, or the simulator's count."""

from __future__ import annotations

import warnings

import torch
from common import arguments, device, in_session, row
from torch import nn

PART = "host waits per steady step"
FEATURES = {
    "session": {},
    "ddp, clip, accumulate, bf16": {
        "strategy": "ddp",
        "gradient_clip_val": 1.0,
        "accumulate_grad_batches": 2,
        "precision": "bf16-mixed",
    },
}
STEPS = 10


def waits(steps: int, sim: bool, step: object) -> int:
    if sim:
        import torchbus_simulator as accelerator

        with accelerator.host_waits() as told:
            for _ in range(steps):
                step()  # type: ignore[operator]
        print("\n".join(sorted({str(one) for one in told})))
        return len(told)
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            step()  # type: ignore[operator]
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


def main() -> None:
    sim = arguments().sim
    if not sim and device().type != "cuda":
        print(f"torch counts the waits of CUDA only, not those of {device().type}")
        return
    for name, options in FEATURES.items():
        with in_session(**options):
            model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 1)).to(
                device()
            )
            optimizer = torch.optim.AdamW(model.parameters())
            x = torch.randn(8, 16, device=device())

            def step() -> None:
                optimizer.zero_grad()  # noqa: B023
                model(x).square().mean().backward()  # noqa: B023
                optimizer.step()  # noqa: B023

            for _ in range(STEPS):
                step()
            row(PART, name, waits(STEPS, sim, step) / STEPS, "waits")


if __name__ == "__main__":
    main()
