"""LoRA on a small, random GPT-2 of transformers, which learns to count.

::

    python examples/gallery/lora.py    # needs peft and transformers
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from pictures import curve
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from transformers import GPT2Config, GPT2LMHeadModel


def main(epochs: int = 6) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=24,
        bos_token_id=None,
        eos_token_id=None,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
    )
    lora = LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    counting = (torch.randint(24, (512, 1)) + torch.arange(16)) % 24
    losses = []
    for _ in range(epochs):
        for (batch,) in DataLoader(TensorDataset(counting), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    all_of_them = sum(parameter.numel() for parameter in model.parameters())
    share = sum(parameter.numel() for parameter in trained) / all_of_them
    print(f"{share:.0%} of the parameters trained, loss {losses[0]:.2f} to {losses[-1]:.2f}")
    curve(losses, "lora.png")
    model.save_pretrained("adapter")


if __name__ == "__main__":
    with session(devices=2):
        main()
