"""Rows of the zoo: what scripts from public repositories taught (docs/corpus.md)."""

from __future__ import annotations

from loop import Loop

OF_CORPUS = [
    Loop("save_open_file"),
    Loop("worker_pool"),
    Loop("eval_in_epoch"),
    Loop("fixed_buffers"),
    Loop("layerwise"),
    Loop("module_in_transform"),
    Loop(
        "text_log",
        whole=("TensorDataset[21]",),
        same_output=False,
        why="its log divides by the loader's length in eval mode, which is that of the whole order",
    ),
    Loop(
        "stop_before_backward",
        refused=r"ended its loop after|different numbers of backward",
        why="each rank stops by a loss of its own",
    ),
    Loop("contrastive", exact=False, why="negatives are those of the rank's own batch"),
    Loop("ignored_tokens"),
    Loop(
        "rl_solved",
        None,
        exact=False,
        divided=False,
        refused=r"ended its loop after|different numbers of backward",
        why="each rank plays its own episodes, and stops by them",
    ),
    # Wrappers that fetch ahead, and what counts as evaluation.
    Loop("prefetcher"),
    Loop("background_thread"),
    Loop("kept_batches"),
    Loop("batchnorm_update", 10, options={"batch": "global"}, values=("variance",)),
    Loop(
        "sample_images",
        10,
        options={"batch": "global"},
        whole=("TensorDataset[12]",),
        values=("seen",),
    ),
    Loop(
        "trained_in_eval_mode",
        refused=r"model\.train\(\)",
        why="every rank would compute the same batches",
    ),
    Loop(
        "attack_in_eval_mode",
        whole=("TensorDataset[19]",),
        values=("correct", "sensitivity"),
    ),
    Loop("eval_with_gradients", whole=("TensorDataset[19]",), values=("correct", "losses")),
    Loop("grpo"),
]
