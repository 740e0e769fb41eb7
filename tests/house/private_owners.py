"""Which object of torch has each private name that a ``_compat`` uses."""

from __future__ import annotations

import argparse
import atexit
import importlib
import logging
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module, modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer, optimizer
from torch.optim.lr_scheduler import LRScheduler, SequentialLR, StepLR
from torch.utils.data import DataLoader, dataloader

HOOKS = "forward_pre forward backward_pre backward state_dict_pre state_dict load_state_dict_pre"
GLOBAL = "forward forward_pre backward module_registration parameter_registration"
SAVED = (
    "alpha beta delta dim dim0 dim1 dim2 dims end exponent ignore_index index indices keepdim margin mat1 mat2 ord"
    " other pos_weight reduction result self start self_sym_sizes target tensor total_weight weight x1 x2"
)
OF_LAPACK = {"_saved_A", "_saved_L", "_saved_eigenvectors", "_saved_inverse"}
NO_NAMES = {
    "_NormalAccessor",
    "_raw",
    "_foreach_",
    "_saved_",
    "_second",
    "_size",
    "_strides",
    *OF_LAPACK,
}
"""Of Python 3.10 only, parts of names, a variable of an example, and what a torch may not have."""


class Saved:
    """Stands for the nodes of which ``saved`` reads something."""


def scheduled_and_stepped() -> Optimizer:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    StepLR(optimizer, 1)
    optimizer.step()
    return optimizer


def owners() -> Iterator[tuple[Any, str]]:
    """Who has which names."""
    yield torch, "_C _compile _functorch _guards _inductor _ops _library _subclasses _tensor _utils"
    yield torch, "_foreach_mul_ _foreach_copy_"
    yield torch, "_amp_foreach_non_finite_check_and_unscale_"
    yield torch._C, "_current_graph_task_id _will_engine_execute_node _nn"
    yield torch.autograd.graph, "_engine_run_backward"
    yield torch.autograd, "_get_sequence_nr"
    yield torch.autograd.graph.Node, "_input_metadata"
    yield torch._utils, "_flatten_dense_tensors _unflatten_dense_tensors"
    yield torch.utils, "_pytree _python_dispatch"
    yield torch.utils.data, "_utils"
    yield torch.utils.data._utils.fetch, "_MapDatasetFetcher"
    yield torch.serialization, "_get_layout _open_zipfile_writer"
    yield torch.ByteStorage, "_dtype"
    yield torch.UntypedStorage, "_cdata"
    yield torch.ops.aten, "_local_scalar_dense _scaled_dot_product_flash_attention_for_cpu"
    yield torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward"
    yield torch.utils._python_dispatch, "_disable_current_modes _get_current_dispatch_mode"
    yield torch.autograd, "_profiler_enabled"
    yield torch.cuda.memory, "_record_memory_history _dump_snapshot"
    yield torch.ops, "_c10d_functional"
    yield Tensor, "_use_count _base _version _indices _values _is_view _nnz _backward_hooks"
    yield Tensor, "_post_accumulate_grad_hooks"
    yield Module, "_modules _parameters _buffers _non_persistent_buffers_set _wrapped_call_impl"
    yield Module, "_compiled_call_impl _load_from_state_dict"
    yield Module, " ".join(f"_{kind}_hooks" for kind in (*HOOKS.split(), "load_state_dict_post"))
    kinds = (*GLOBAL.split(), "backward_pre", "buffer_registration")
    yield modules.module, " ".join(f"_global_{kind}_hooks" for kind in kinds)
    yield optimizer, "_global_optimizer_pre_hooks _global_optimizer_post_hooks"
    yield modules.batchnorm, "_BatchNorm _NormBase"
    yield torch.nn.MultiheadAttention, "_reset_parameters"
    yield DataLoader, "_auto_collation _get_iterator _index_sampler _iterator"
    yield dataloader, "_BaseDataLoaderIter _DatasetKind _SingleProcessDataLoaderIter"
    yield dataloader, "_MultiProcessingDataLoaderIter"
    yield dataloader._BaseDataLoaderIter, "_next_index _reset"
    single = dataloader._SingleProcessDataLoaderIter
    yield single, "_dataset_kind _index_sampler _num_yielded _sampler_iter"
    yield dataloader._MultiProcessingDataLoaderIter, "_workers _rcvd_idx _send_idx"
    yield dataloader._MultiProcessingDataLoaderIter, "_task_info _data_queue"
    yield Optimizer, "_patch_step_function _optimizer_step_post_hooks"
    yield Optimizer, "_optimizer_load_state_dict_pre_hooks"
    yield LRScheduler, "_step_count"
    yield scheduled_and_stepped(), "_opt_called"
    yield SequentialLR, "_schedulers _milestones"
    yield GradScaler, "_scale _per_optimizer_states _lazy_init_scale_growth_tracker"
    yield dist.distributed_c10d, "_abort_process_group _world"
    yield dist.ProcessGroup, "_get_backend _device_types _get_sequence_number_for_group"
    yield dist.Reducer, "_rebuild_buckets"
    yield DistributedDataParallel, "_build_params_for_reducer"
    yield torch.nn.parallel.distributed, "_sync_module_states"
    yield Saved, " ".join(f"_saved_{name}" for name in SAVED.split())
    yield argparse.ArgumentParser(), "_actions"
    yield logging.FileHandler(os.devnull, delay=True), "_builtin_open"
    yield sys, "_getframe _current_frames"
    yield atexit, "_clear _run_exitfuncs"
    yield weakref.finalize, "_registry"
    yield torch.cuda, "_is_in_bad_fork"
    yield torch._C, "_swap_tensor_impl"
    yield torch, "_has_compatible_shallow_copy_type"
    yield Module(), "_forward_pre_hooks_with_kwargs"
    yield torch, "_register_device_module"
    yield torch.cuda, "_lazy_init"
    yield from owners_in_fsdp()


def owners_in_fsdp() -> Iterator[tuple[Any, str]]:
    from torch.distributed import fsdp, tensor
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group, _fsdp_state

    importlib.import_module("torch.distributed.tensor._collective_utils")
    yield tensor, "_collective_utils"
    yield tensor.DTensor, "_op_dispatcher"
    yield tensor.DTensor._op_dispatcher, "_custom_op_handlers"
    yield fsdp.FSDPModule, "_get_fsdp_state"
    yield _fsdp_state.FSDPState, "_is_root"
    yield _fsdp_param_group.FSDPParamGroup, "_all_gather_result"
    yield _fsdp_param_group.FSDPParamGroup, "_training_state"
    yield _fsdp_param.FSDPParam, "_unsharded_param"
    yield importlib.import_module("torch.distributed"), "_composable _composable_state"
    yield importlib.import_module("torch.distributed._composable_state"), "_module_state_mapping"
    if torch.__version__ >= "2.13":
        yield fsdp.FSDPModule, "_set_unshard_async_op"
        yield tensor, "_redistribute"
        yield tensor._redistribute, "_gen_transform_infos"
        yield torch._C, "_clear_DTensor_sharding_propagator_cache"


SLOW = {
    "_dynamo": "torch._dynamo",
    "_link_all_hp_params": "deepspeed.runtime.zero.stage_1_and_2",
    "_broadcast_model": "deepspeed.runtime.engine",
    "_zero_init_param": "deepspeed.runtime.zero.partition_parameters",
    "_set_dtype": "deepspeed.runtime.zero.partition_parameters",
    "_convert_to_deepspeed_param": "deepspeed.runtime.zero.partition_parameters",
    "_orig_mod": "torch._dynamo.eval_frame",
    "_initial_iter_for_state_dict": "torchdata.stateful_dataloader",
    "_update_count": "torchmetrics.metric",
    "_computed": "torchmetrics.metric",
}
"""Names of modules that are slow to import: a test of its own for each."""
IN_EITHER = {"_fsdp_param_group", "_fsdp_param_groups"}
"""Of a unit: newer releases have several groups."""
LEFT_BY_ENGINE = {"_is_fsdp_managed_module", "_fsdp_use_orig_params", "_distribute_module_applied"}
"""What older releases leave in a module is taken away; nothing is lost without it."""
OF_NEW_RELEASES = {
    "_clear_DTensor_sharding_propagator_cache",
    "_gen_transform_infos",
    "_redistribute",
    "_set_unshard_async_op",
}
ALL = [
    pytest.param(owner, name, id=f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
    for owner, names in owners()
    for name in names.split()
]
