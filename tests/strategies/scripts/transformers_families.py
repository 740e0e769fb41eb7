"""Small random models of transformers under one strategy, each against one process.

Prints, for each family, how far its losses and weights are apart, or what refused it or warned.
"""

import ast
import contextlib
import io
import json
import sys
import warnings

import torch
import transformers
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import TorchbusError

warnings.simplefilter("ignore")
STRATEGY, OPTIONS = sys.argv[1], ast.literal_eval(sys.argv[2])
FAMILIES = sys.argv[3:]
WORDS, LENGTH, SAMPLES, BATCH = 61, 10, 18, 4
DECODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_dropout": 0.0,
}
ENCODER = {
    **{name: DECODER[name] for name in list(DECODER)[:5]},
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
OF_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
OF_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
TOWER = {name: DECODER[name] for name in list(DECODER)[1:5]}
KINDS = {
    "Llama": ("ForCausalLM", DECODER),
    "Qwen2": ("ForCausalLM", DECODER),
    "Mixtral": (
        "ForCausalLM",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "GPTNeoX": ("ForCausalLM", {**DECODER, "hidden_dropout": 0.0}),
    "Gemma": ("ForCausalLM", {**DECODER, "head_dim": 8}),
    "GPT2": ("LMHeadModel", {**OF_GPT, **WITHOUT_DROPOUT}),
    "OPT": (
        "ForCausalLM",
        {
            **{name: DECODER[name] for name in list(DECODER)[:5]},
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
        },
    ),
    "Bert": ("ForMaskedLM", ENCODER),
    "T5": (
        "ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "ViT": (
        "ForImageClassification",
        {
            **ENCODER,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 3,
            "attn_implementation": "eager",
        },
    ),
    "Mistral": ("ForCausalLM", {**DECODER, "sliding_window": 4}),
    "DistilBert": (
        "ForMaskedLM",
        {
            "vocab_size": WORDS,
            "dim": 32,
            "hidden_dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "Bart": (
        "ForConditionalGeneration",
        {
            **OF_BART,
            "vocab_size": WORDS,
            "max_position_embeddings": 16,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
    ),
    "Whisper": (
        "ForConditionalGeneration",
        {
            **OF_BART,
            "vocab_size": WORDS,
            "num_mel_bins": 4,
            "max_source_positions": 8,
            "max_target_positions": 16,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "CLIP": (
        "Model",
        {
            "text_config": {**TOWER, "vocab_size": WORDS, "max_position_embeddings": 16},
            "vision_config": {**TOWER, "image_size": 8, "patch_size": 4},
            "projection_dim": 16,
        },
    ),
    "Mamba": (
        "ForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
}
WARNED = "your gradients may be wrong"
MORE = {"CLIP": {"return_loss": True}}


def batches(family, batch_size):
    """Padded sequences, or images."""
    generator = torch.Generator().manual_seed(1)
    if family == "ViT":
        images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
        labels = torch.randint(3, (SAMPLES,), generator=generator)
        data = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]
        return DataLoader(data, batch_size=batch_size)
    words = torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=generator)
    if family == "Whisper":
        sounds = torch.randn(SAMPLES, 4, 16, generator=generator)
        data = [{"input_features": x, "labels": y} for x, y in zip(sounds, words, strict=True)]
        return DataLoader(data, batch_size=batch_size)
    if family == "CLIP":
        images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
        data = [{"input_ids": x, "pixel_values": y} for x, y in zip(words, images, strict=True)]
        return DataLoader(data, batch_size=batch_size)
    lengths = torch.randint(4, LENGTH + 1, (SAMPLES, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    labels = words.masked_fill(mask == 0, -100)
    data = [
        {"input_ids": one, "attention_mask": is_there, "labels": wanted}
        for one, is_there, wanted in zip(words, mask, labels, strict=True)
    ]
    return DataLoader(data, batch_size=batch_size)


def train(family):
    ending, sizes = KINDS[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, family + ending)(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    losses = []
    for batch in batches(family, BATCH):
        optimizer.zero_grad()
        loss = model(**batch, **MORE.get(family, {})).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return torch.tensor(losses), state


def apart(ours, alone):
    assert list(ours[1]) == list(alone[1])
    pairs = [(ours[0], alone[0]), *((one, alone[1][name]) for name, one in ours[1].items())]
    return max(float((one - other).abs().max()) for one, other in pairs)


found = {}
for family in FAMILIES or KINDS:
    alone = train(family)
    options = {"strategy": STRATEGY, "devices": 2, "accelerator": "cpu", "launch": "fork"}
    said = io.StringIO()
    try:
        with (
            contextlib.redirect_stderr(said),
            session(batch="global", **options, **OPTIONS),
        ):
            ours = train(family)
        found[family] = apart(ours, alone)
        if WARNED in said.getvalue():
            found[family] = f"{WARNED}: {said.getvalue()}"
    except TorchbusError as error:
        found[family] = f"{type(error).__name__}: {error}"
    except Exception as error:
        found[family] = f"unexpected {type(error).__name__}: {error}"
print(json.dumps(found))
