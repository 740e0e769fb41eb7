"""What Lightning, Fabric, Accelerate and others call things, for the hint of an error.

Such a name is never accepted: two names for one thing would have to mean the same for ever.
"""

from __future__ import annotations

IN_THE_LOOP = "the loop is yours: write it there"
NO_CONTEXT = (
    "context parallel is not offered (see docs/limits.md); sequence_parallel=True divides the"
    " sequence between the layers of a plan"
)
NO_XLA = (
    "torch_xla ends with torch 2.9. strategy='tpu' of torchbus-tpu uses torch_tpu; it is"
    " experimental, and was never run on a TPU"
)
FOUND = "the session finds models, optimizers and loaders by itself, so leave it out"
HERE: dict[str, dict[str, str]] = {
    "option": {
        "amp": "here it is called precision='16-mixed' or 'bf16-mixed'",
        "auto_lr_find": IN_THE_LOOP,
        "callbacks": "pass plugins by position: session(MyPlugin(), ...)",
        "ckpt_path": "here it is called checkpoint=, from which a run also resumes",
        "context_parallel": NO_CONTEXT,
        "context_parallel_size": NO_CONTEXT,
        "cp": NO_CONTEXT,
        "cpu": "here it is called accelerator='cpu'",
        "default_root_dir": "pass folders one by one, such as checkpoint='folder'",
        "detect_anomaly": "use torch.autograd.set_detect_anomaly(True)",
        "deterministic": "use torch.use_deterministic_algorithms(True)",
        "enable_checkpointing": "here it is called checkpoint=, a folder",
        "enable_progress_bar": "here it is called progress=",
        "even_batches": "leave it out: uneven batches are exact, by their weights",
        "find_unused_parameters": "leave it out: parameters that a loss does not reach are found",
        "gpus": "here it is called devices=, with accelerator='gpu'",
        "gradient_accumulation_plugin": "here it is called accumulate_grad_batches=",
        "gradient_accumulation_steps": "here it is called accumulate_grad_batches=",
        "gradient_checkpointing": "here it is called activation_checkpointing=",
        "limit_train_batches": IN_THE_LOOP,
        "limit_val_batches": IN_THE_LOOP,
        "log_with": "here it is called logger=",
        "loggers": "here it is called logger=, which takes a list too",
        "max_epochs": IN_THE_LOOP,
        "max_grad_norm": "here it is called gradient_clip_val=",
        "max_steps": IN_THE_LOOP,
        "mixed_precision": "with any strategy it is called precision=",
        "nnodes": "here it is called num_nodes=",
        "nproc_per_node": "here it is called devices=",
        "num_machines": "here it is called num_nodes=",
        "num_processes": "here it is called devices=",
        "num_sanity_val_steps": IN_THE_LOOP,
        "project_dir": "pass folders one by one, such as checkpoint='folder'",
        "replace_sampler_ddp": "here it is called replace_sampler=",
        "resume_from_checkpoint": "here it is called checkpoint=, from which a run also resumes",
        "split_batches": "here it is called batch='global'",
        "static_graph": "leave it out: graphs may change at any step",
        "tpu_cores": "here it is called devices=",
        "use_distributed_sampler": "here it is called replace_sampler=",
        "val_check_interval": IN_THE_LOOP,
        "world_size": "here it is called devices=, per machine, and num_nodes=",
    },
    "verb": {
        "accumulate": "here it is session(accumulate_grad_batches=...), or s.accumulating()",
        "all_reduce": "here it is called s.reduce",
        "autocast": "here it is session(precision='bf16-mixed')",
        "backward": "call loss.backward()",
        "call": "register a plugin with the method: session(MyPlugin())",
        "clip_grad_norm_": "call torch.nn.utils.clip_grad_norm_, or pass gradient_clip_val=",
        "clip_gradients": "call torch.nn.utils.clip_grad_norm_, or pass gradient_clip_val=",
        "current_epoch": "use the number that s.epochs(...) gives",
        "end_training": "leave it out: the end of the block does it",
        "gather": "here it is called s.all_gather",
        "gather_for_metrics": "use s.all_gather; evaluation is not divided by itself",
        "global_rank": "here it is called s.rank",
        "global_step": "count it in the loop",
        "init_trackers": "here it is session(logger=...)",
        "is_global_zero": "here it is called s.is_main",
        "is_last_process": "compare s.rank with s.world_size - 1",
        "is_local_main_process": "compare s.local_rank with 0",
        "is_main_process": "here it is called s.is_main",
        "launch": "leave it out: the block starts the ranks",
        "load_state": "here it is called s.load",
        "local_process_index": "here it is called s.local_rank",
        "log_metrics": "here it is called s.log_dict",
        "node_rank": "here it is called s.world.node_rank",
        "num_processes": "here it is called s.world_size",
        "optimizer_step": "call optimizer.step()",
        "prepare": FOUND,
        "process_index": "here it is called s.rank",
        "save_checkpoint": "here it is called s.save",
        "save_model": "call torch.save(model.state_dict(), path), which rank 0 writes",
        "save_state": "here it is called s.save",
        "seed_everything": "say session(seed=42), which seeds torch, Python and NumPy on all ranks",
        "set_seed": "say session(seed=42), which seeds torch, Python and NumPy on all ranks",
        "setup": FOUND,
        "setup_dataloaders": FOUND,
        "setup_module": FOUND,
        "setup_optimizers": FOUND,
        "skip_first_batches": "a run that resumes from a checkpoint skips by itself",
        "sync_gradients": "here it is s.is_last_batch, and s.no_sync() for single backwards",
        "trackers": "log by s.log",
        "unwrap_model": "the model is not wrapped: use it as it is",
        "wait_for_everyone": "here it is called s.barrier()",
    },
    "strategy": {
        "bagua": "use 'ddp', with gradient_algorithm=",
        "dataparallel": "here it is called 'dp'",
        "ddp_find_unused_parameters_false": "here it is called 'ddp'",
        "ddp_find_unused_parameters_true": "here it is called 'ddp': unused parameters are found",
        "ddp_fork": "here it is strategy='ddp', launch='fork'",
        "distributeddataparallel": "here it is called 'ddp'",
        "fsdp2": "here it is called 'fsdp'",
        "fsdp_cpu_offload": "here it is strategy='fsdp', cpu_offload=True",
        "fully_shard": "here it is called 'fsdp'",
        "fullyshardeddataparallel": "here it is called 'fsdp'",
        "hvd": "here it is called 'horovod'",
        "single_device": "leave strategy out: with one device there is nothing to synchronise",
        "single_tpu": NO_XLA,
        "single_xla": NO_XLA,
        "tpu_spawn": NO_XLA,
        "xla": NO_XLA,
        "xla_fsdp": NO_XLA,
        "zero": "here it is called 'ddp_sharded'",
        "zero1": "here it is called 'ddp_sharded'",
        "zero2": "here it is strategy='ddp_sharded', shard_gradients=True",
        "zero3": "here it is called 'fsdp'",
    },
    "logger": {"csv_logger": "here it is called 'csv'", "all": "name them: logger=['wandb', ...]"},
}


def hint(kind: str, name: str) -> str:
    """Return what to write here for a name of another library, or ""."""
    known = HERE.get(kind, {})
    return known.get(name, known.get(name.lower(), ""))
