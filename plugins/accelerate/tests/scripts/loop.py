"""Trains as users of Accelerate do, and prints the weights as JSON.

Words: "plain" or a session's options as JSON; Accelerator's gradient_accumulation_steps; the
loader's batch size; the step after which the run is to leave, or 0. A word "seedable": with
use_seedable_sampler; "epochs": and loader.set_epoch.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

how, windows, batch, leave = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore", FutureWarning)
block = contextlib.nullcontext() if how == "plain" else session(**json.loads(how))

with block as s:
    config = DataLoaderConfiguration(use_seedable_sampler="seedable" in sys.argv)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=windows, dataloader_config=config
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(23, 3)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader, test = DataLoader(data, batch, shuffle=True), DataLoader(data, batch)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    for epoch in range(3) if s is None or "checkpoint" not in how else s.epochs(3):
        if "epochs" in sys.argv:
            loader.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if s is not None:
                s.log("loss", loss, on_epoch=True)
                if leave:
                    time.sleep(0.2)  # ranks decide every quarter of a second that they leave
                if leave and s.global_step == leave:
                    s.save_and_leave()
        model.eval()
        errors = []
        with torch.no_grad():
            for inputs, targets in test:
                pair = accelerator.gather_for_metrics((model(inputs), targets))
                errors.append((pair[0] - pair[1]).square())
    found = {
        "processes": accelerator.num_processes,
        "evaluated": len(torch.cat(errors)),
        "error": torch.cat(errors).mean().item(),
        "weights": [value for p in model.parameters() for value in p.flatten().tolist()],
        "explained": "" if s is None else s.explain(),
        "steps": None if s is None else s.global_step,
    }
if accelerator.is_main_process:
    print("found", json.dumps(found))
