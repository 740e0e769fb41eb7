"""Mistakes that a type checker must find: mypy says so of each comment that it does not need.

`make.py test` checks this file. Nothing runs it.
"""

from __future__ import annotations

from torchbus import session

session(precison="bf16-mixed")  # type: ignore[call-arg]
session(precision="bf16")  # type: ignore[arg-type]
session(strategy="dpp")  # type: ignore[arg-type]
session(launch="frok")  # type: ignore[arg-type]
session(batch="globl")  # type: ignore[arg-type]
session(devices=2.5)  # type: ignore[arg-type]
session(accumulate_grad_batches="4")  # type: ignore[arg-type]
session(gradient_clip_val="1.0")  # type: ignore[arg-type]
session(logger="wandbb")  # type: ignore[arg-type]
session(checkpoint=3)  # type: ignore[arg-type]
session(gradient_accumulation_steps=4)  # type: ignore[call-arg]
session(sync_batchnorm="yes")  # type: ignore[arg-type]
session(mode="minimum")  # type: ignore[arg-type]
with session() as s:
    s.lgo("loss", 1.0)  # type: ignore[attr-defined]
    s.log(1, "loss")  # type: ignore[arg-type]
    s.log("loss", 1.0, on_steps=True)  # type: ignore[call-arg]
    s.log("loss", 1.0, reduce="average")  # type: ignore[arg-type]
    s.save()  # type: ignore[call-arg]
    s.epochs("10")  # type: ignore[arg-type]
    s.reduce("x")  # type: ignore[arg-type]
    s.is_main_process()  # type: ignore[attr-defined]
    s.toggle()  # type: ignore[call-arg]
