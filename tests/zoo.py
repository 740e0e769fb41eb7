"""The zoo: one row for each loop in loops/, with what must hold when it runs on several ranks.

What holds for all of them: (a) the ranks end with the same parameters, buffers, learning rates and step counts, and
(d) files are written once, printed lines are not repeated, and what follows the block runs once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LOOPS = Path(__file__).parent / "loops"


@dataclass(frozen=True)
class Loop:
    name: str
    batch_size: int | None = 4
    """Per rank; None for a script that has no batches."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the session is told besides strategy and devices."""
    exact: bool = True
    """(b) First gradients, parameters, rates and `values` are those of one process with the batches of all ranks."""
    divided: bool = True
    """(c) Each training sample is fetched once per pass by one rank, evaluation sees all samples on every rank. A loop
    that is not divided is compared with one process at its own batch size."""
    same_order: bool = True
    """Whether the order of the data, too, is that of the one process."""
    same_output: bool = True
    """Whether an exact loop prints the very lines of the one process, rather than as many lines."""
    values: tuple[str, ...] = ()
    """Names in the script whose final values belong to (a) and (b)."""
    distinct: tuple[str, ...] = ()
    """Names whose final values must differ between ranks: what each drew for itself."""
    own: str = ""
    """A regular expression for the optimizers' facts that belong to the samples of each rank, and are not compared."""
    whole: tuple[str, ...] = ()
    """Data sets that are evaluated with gradients enabled and so look like training to the ledger."""
    said: str = ""
    """A regular expression for what the session has to say."""
    refused: str = ""
    """A regular expression for the error that stops the loop."""
    setup_first: bool = False
    """Run the script's top level before the block, and only main() inside."""
    tolerance: float = 1e-9
    """Largest error, relative to the largest value of the tensor."""
    why: str = ""
    """The reason, where something does not hold."""

    @property
    def path(self) -> Path:
        return LOOPS / f"{self.name}.py"

    def under_command(self) -> Loop:
        """The row for `torchbus run`, where the script's top level, too, is inside the session."""
        return replace(self, setup_first=False, divided=True, said="", why="") if self.setup_first else self

    def of_one_process(self, ranks: int) -> int:
        """How many ranks' batches the one process takes that the loop is compared with."""
        return ranks if self.divided and self.options.get("batch") != "global" else 1

    def arguments(self, processes: int) -> list[str]:
        """The script's arguments when one process takes the batches of so many."""
        return [] if self.batch_size is None else ["--batch-size", str(self.batch_size * processes)]

    @property
    def relaxed(self) -> bool:
        strict = Loop(self.name)
        checks = ("exact", "divided", "same_order", "same_output", "tolerance", "refused", "said")
        return any(getattr(self, check) != getattr(strict, check) for check in checks)


REPLICAS = r"(?i)same (thing|batch|sample|numbers|gradient)|replica"
UNEVEN = "different numbers of backward calls"
OWN_DRAWS = "batches that the script draws can't be divided; after the first backward each rank draws its own"
LOCAL_COUNT = "prints a number of samples that the script counts itself, which is this rank's"

ZOO = [
    Loop("mnist_main", values=("test_loss", "accuracy")),
    Loop("flat_script"),
    Loop("shuffled_test", values=("accuracy",)),
    Loop(
        "vae",
        options={"loss_reduction": "sum"},
        exact=False,
        same_order=False,
        values=("test_loss", "sample"),
        why="reparametrisation noise; it moves the stream from which the order is drawn in one process",
    ),
    Loop("autoencoder_sum", options={"loss_reduction": "sum"}, values=("total",)),
    Loop("siamese", exact=False, why="the partner of each sample is drawn with `random` on the rank that fetches it"),
    Loop("lbfgs_closure"),
    Loop("lbfgs_full_batch", None, divided=False, said=REPLICAS, why="there is one batch, made by the script"),
    Loop("rnn_carried_hidden", divided=False, said=REPLICAS, why="batches are slices that the script takes"),
    Loop("slices_dropout", exact=False, divided=False, said=REPLICAS, why="batches are slices that the script takes; noise"),
    Loop("no_optimizer"),
    Loop("updated_by_hand", refused="no backward was heard", why="gradients that are neither made by backward nor left in .grad can't be seen"),
    Loop("gan"),
    Loop(
        "gan_noise",
        exact=False,
        same_order=False,
        values=("samples",),
        distinct=("noise",),
        why="latents drawn in the loop, batch statistics",
    ),
    Loop("wgan_gp"),
    Loop("cyclegan"),
    Loop("infogan"),
    Loop("encoder_decoder"),
    Loop("partial_optimizer"),
    Loop("ema_copy", values=("test_loss",)),
    Loop("vq_codebook", exact=False, why="the codebook follows the statistics of the batch"),
    Loop("forward_unused"),
    Loop("train_override", whole=("TensorDataset[19]",), values=("correct",), same_output=False, why=LOCAL_COUNT),
    Loop("unregistered_list"),
    Loop("tied_weights"),
    Loop("unused_parameters"),
    Loop("expert_routing"),
    Loop("batch_branch", exact=False, why="the branch is chosen by the batch as a whole, so by each rank for itself"),
    Loop("own_accumulation", values=("steps",)),
    Loop("grad_clipping", values=("total_norm",)),
    Loop("one_cycle"),
    Loop("own_autocast", tolerance=2e-2, values=("scale",), why="gradients are rounded to bfloat16 on each rank"),
    Loop("plateau"),
    Loop("plateau_running", exact=False, why="the metric is a mean over this rank's samples, then over ranks"),
    Loop("early_stopping", values=("val_loss", "epoch")),
    Loop("while_loss", values=("steps",)),
    Loop("best_checkpoint", values=("best_acc",)),
    Loop("copyfile_checkpoint", values=("best_acc1",)),
    Loop("save_whole_model"),
    Loop("pickled_optimizer"),
    Loop("deepcopy_model", whole=("TensorDataset[22]",), values=("best_loss", "student_loss")),
    Loop("compiled"),
    Loop("iterable_plain"),
    Loop("iterable_workers"),
    Loop("custom_batch_sampler"),
    Loop("weighted_sampler"),
    Loop("huge_sampler", values=("step",)),
    Loop("generator_batches", exact=False, divided=False, distinct=("xb",), said=REPLICAS, why=OWN_DRAWS),
    Loop("get_batch", exact=False, divided=False, values=("val_loss",), distinct=("xb",), why=OWN_DRAWS),
    Loop(
        "iterator_before",
        divided=False,
        setup_first=True,
        said=r"(?i)iterator",
        why="an iterator that exists before the block goes on as it was made",
    ),
    Loop("whole_batch", 10, options={"batch": "global"}),
    Loop("setup_at_top", setup_first=True),
    Loop("next_iter"),
    Loop("endless_loader"),
    Loop("zipped_loaders"),
    Loop("stateful_loader"),
    Loop("sharded_items", 12, divided=False, why="the batches are of the loop's own, and it divides them by s.shard"),
    Loop("began", exact=False, said="a factor of the loss is not the same on all ranks", why="k moves by what each rank reads before backward"),
    Loop("mixup", exact=False, same_order=False, why="mixing weights and pairs are drawn on each rank; in one process they move the order's stream"),
    Loop("loader_workers"),
    Loop("persistent_workers"),
    Loop("batch_size_none"),
    Loop("loader_subclass"),
    Loop("reinforce", None, exact=False, divided=False, distinct=("ep_reward",), why="each rank plays episodes of its own"),
    Loop("reads_rank"),
    Loop("transfer_learning", values=("epoch_acc",), same_output=False, why="prints a running loss weighted by this rank's batch sizes"),
    Loop("backward_inputs"),
    Loop("checkpointing"),
    Loop("checkpointing_reentrant"),
    Loop("retain_graph"),
    Loop("sparse_embedding"),
    Loop("caught_exception", values=("ooms",)),
    Loop("backward_per_class", refused=UNEVEN, why="ranks make different numbers of backwards"),
    Loop("skip_bad_batch", refused=UNEVEN, why="the rank that has the bad sample makes no backward in that step"),
    Loop("unseeded", exact=False, same_order=False, why="one process draws another order"),
    Loop("dropout", exact=False, distinct=("noise",), why="noise"),
    Loop("batch_norm", exact=False, values=("accuracy",), why="batch statistics"),
    Loop("assigned_grads"),
    Loop("architecture_search"),
    Loop("optimizer_in_backward"),
    Loop("create_graph"),
    Loop("train_accuracy", values=("test_accuracy", "train_accuracy")),
    Loop("meta_learning"),
    Loop("perturbed_samples", own=r"optimizer(?!1\.)", said="so is taken for this rank.s own", why="perturbations differ"),
    # What scripts from public repositories taught (docs/corpus.md).
    Loop("save_open_file"),
    Loop("worker_pool"),
    Loop("eval_in_epoch"),
    Loop("fixed_buffers"),
    Loop("layerwise"),
    Loop("module_in_transform"),
    Loop("text_log", whole=("TensorDataset[21]",)),
    Loop("stop_before_backward", refused=r"ended its loop after|different numbers of backward", why="each rank stops by a loss of its own"),
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
    Loop("sample_images", 10, options={"batch": "global"}, whole=("TensorDataset[12]",), values=("seen",)),
    Loop("trained_in_eval_mode", refused=r"model\.train\(\)", why="every rank would compute the same batches"),
    Loop("attack_in_eval_mode", whole=("TensorDataset[19]",), values=("correct",)),
    Loop("grpo", refused=r"content|hold", why="each rank fills a buffer of its own"),
]
