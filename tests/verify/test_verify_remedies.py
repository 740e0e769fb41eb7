"""The remedies that ``torchbus verify`` names: with each of them, its cause is gone.

That of batch normalisation needs GPUs. Here, the simulated accelerator stands in for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_verify_scripts import HIDDEN, TOKENS, script
from verdicts import COUNTED, READING, STATISTICS, SUMMED, WEIGHTED, names, verified

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SESSION = "import torchbus; s = torchbus.current()"
WEIGHED = f"{HIDDEN}\n{SESSION}\n"
TOKENS_WEIGHED = (
    "(s and s.backward_weight(float(((y > 0).to(x.dtype) + 0.1).sum())), " + TOKENS + ")[1]"
)
NOISY = """
class Noisy(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(6{generator}), y

loader = DataLoader(Noisy(x, y), batch_size=6, shuffle=True, num_workers=1)
"""
SLICES = """
import torch
from torch import nn
{session}
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(24, 6)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(6):
    {shard}
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
NORMALISED = (SCRIPTS / "verify_remedies_normalised.py").read_text()
SYNCED = Path(__file__).parent / "scripts" / "verify_synced.py"


def verdict_of(folder, source):
    (folder / "train.py").write_text(source)
    return verified("--steps", "all", "train.py", cwd=folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_weights_by_tokens(tmp_path):
    before = verified("--steps", "4", script(tmp_path, TOKENS, HIDDEN), cwd=tmp_path)
    assert names(before) == (WEIGHTED,)
    after = verified("--steps", "4", script(tmp_path, TOKENS_WEIGHED, WEIGHED), cwd=tmp_path)
    assert after["status"] == 0, after


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loss_that_is_a_sum(tmp_path):
    script(tmp_path, "F.cross_entropy(model(x), y, reduction='sum')")
    assert verified("--steps", "4", "train.py", cwd=tmp_path)["status"] == 0
    before = verified("--steps", "4", "--loss-reduction", "mean", "train.py", cwd=tmp_path)
    assert names(before) == (SUMMED,) and before["status"] == 2
    assert "--loss-reduction sum" in before["causes"][0]["remedy"]
    after = verified("--steps", "4", "--loss-reduction", "sum", "train.py", cwd=tmp_path)
    assert after["status"] == 0, after


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_count_that_is_reduced(tmp_path):
    """Of batches that every rank has a part of: one that is left without repeats what it had."""
    count = "seen = 0\nloader = DataLoader(TensorDataset(x[:24], y[:24]), batch_size=6)\n"
    loss = "F.cross_entropy(model(x), y); seen += len(x)"
    script(tmp_path, loss, count)
    source = (tmp_path / "train.py").read_text()
    assert names(verdict_of(tmp_path, source + "print('seen', seen)\n")) == (COUNTED,)
    reduced = f"{SESSION}\nprint('seen', int(s.reduce(seen, 'sum')) if s else seen)\n"
    after = verdict_of(tmp_path, source + reduced)
    assert after["status"] == 0, after


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_augmentation_that_is_seeded_by_the_index(tmp_path):
    noisy = NOISY.format(generator="")
    before = verified("--steps", "4", script(tmp_path, before=noisy), cwd=tmp_path)
    assert names(before) == (READING,)
    seeded = NOISY.format(generator=", generator=torch.Generator().manual_seed(index)")
    after = verified("--steps", "4", script(tmp_path, before=seeded), cwd=tmp_path)
    assert after["status"] == 0, after


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loop_that_skips_smaller_batches(tmp_path):
    script(tmp_path, before="loss = torch.zeros(())")
    source = (tmp_path / "train.py").read_text()
    skips = source.replace(
        "for x, y in loader:", "for x, y in loader:\n        if len(x) != 6: continue"
    )
    before = verdict_of(tmp_path, skips)
    assert names(before) == ("steps by the size of a batch",) and not before["notes"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batches_of_the_scripts_own_that_are_shared_out(tmp_path):
    whole = verdict_of(tmp_path, SLICES.format(session="", shard="pass"))
    assert whole["status"] == 0 and whole["notes"][0].startswith("nothing was gained")
    shard = "batch = s.shard(batch) if s else batch"
    parts = verdict_of(tmp_path, SLICES.format(session=SESSION, shard=shard))
    assert parts["status"] == 0 and not parts["notes"], parts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_evaluation_that_is_reduced(tmp_path):
    """``shard_eval`` left as it is; the count is summed over ranks."""
    script(tmp_path)
    with open(tmp_path / "train.py", "a") as file:
        file.write(
            f"{SESSION}\nmodel.eval()\nwith torch.no_grad():\n"
            "    right = sum(int((model(a).argmax(1) == b).sum()) for a, b in loader)\n"
            "print('correct', int(s.reduce(right, 'sum')) if s else right)\n"
        )
    verdict = verified("--steps", "all", "--shard-eval", "True", "train.py", cwd=tmp_path)
    assert verdict["status"] == 0, verdict


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_file_that_rank_0_writes(tmp_path):
    script(tmp_path)
    source = (tmp_path / "train.py").read_text() + SESSION
    each = "\nopen(f'log{s.rank if s else 0}.txt', 'w').write('done')\n"
    before = verdict_of(tmp_path, source + each)
    assert names(before) == ("files",) and "log1.txt" in before["causes"][0]["found"]
    once = "\nif not s or s.is_main:\n    open('log0.txt', 'w').write('done')\n"
    assert verdict_of(tmp_path, source + once)["status"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(accelerator.missing() is not None, reason=str(accelerator.missing()))
def test_statistics_of_the_whole_batch(tmp_path):
    (tmp_path / "train.py").write_text(NORMALISED)
    before, after = (
        json.loads(
            fork_script(
                SYNCED, "--json", "--steps", "all", *words, "train.py", cwd=tmp_path, timeout_s=280
            ).stdout
        )
        for words in ((), ("--sync-batchnorm", "True"))
    )
    assert names(before) == (STATISTICS,) and before["status"] == 1
    assert after["status"] == 0 and after["largest"] > 0, after
