"""QLoRA with peft and transformers, unchanged in a session; prints how far it is from a plain process."""

import json
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from torchao.quantization import to_nf4
from torchbus import session
from transformers import LlamaConfig, LlamaForCausalLM

from torchbus_quantize.layers import dequantize

strategy, ranks = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)


def base():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads))


def make():
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"])
    return get_peft_model(base(), lora)


def train(model, batch_size):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    torch.manual_seed(1)
    for batch in DataLoader(torch.randint(64, (22, 8)), batch_size=batch_size):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()


def adapters(model):
    return {name: one.detach() for name, one in model.named_parameters() if "lora" in name}


def apart(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one.keys() | other.keys())


with session(
    strategy=strategy, devices=ranks, accelerator="cpu", launch="fork", quantize="nf4"
) as s:
    model = make()
    start = {name: one.clone() for name, one in model.state_dict().items() if "lora" in name}
    train(model, 6 // ranks)
    model.save_pretrained("adapter")
    told = " ".join(s.explain().split())

plain = make()
for path, layer in plain.named_modules():
    if type(layer) is nn.Linear and "lora" not in path:
        blocks = layer.weight.numel() // 64
        weight = to_nf4(layer.weight.detach(), 64, min(blocks, 256))
        layer.weight = nn.Parameter(weight, requires_grad=False)
train(plain, 6)

loaded = PeftModel.from_pretrained(base(), "adapter")
dequantize(model)
tokens = torch.arange(8).reshape(1, 8)
merged = model.merge_and_unload()(input_ids=tokens).logits
print(
    json.dumps(
        {
            "apart": apart(adapters(model) or adapters(loaded), adapters(plain)),
            "loaded": apart(adapters(loaded), adapters(plain)),
            "moved": apart(start, adapters(plain)),
            "merged": float((merged - plain(input_ids=tokens).logits).abs().max()),
            "told": told,
        }
    )
)
