"""Which numbers of a loop are counted from its batches, by its source."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from torchbus_sampler.counted import CountFinder
from torchbus_sampler.dependent import ShareDependence
from torchbus_sampler.loop_program import facts_of


def counted(file: str, line: int) -> dict[str, str]:
    facts = facts_of((file, line))
    return {} if facts is None else CountFinder(facts).found()


LOOP = """
def train(loader, model, optimizer, train_set, s):
    correct = total = seen = 0
    running, predictions, targets = 0.0, [], []
    for i, (x, y) in enumerate(
        loader,
    ):
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
{body}
    return {result}
"""


def found(tmp_path: Path, body: str, result: str = "correct / total") -> dict[str, str]:
    file = tmp_path / f"loop{len(list(tmp_path.iterdir()))}.py"
    text = LOOP.format(body=indent(dedent(body).strip(), " " * 8), result=result)
    file.write_text(text)
    return counted(str(file), 5)


@pytest.mark.parametrize(
    ("body", "result", "names"),
    [
        ("correct += (out.argmax(1) == y).sum().item()", "correct", ["correct"]),
        (
            "correct += out.max(1)[1].eq(y).sum().item()\ntotal += y.size(0)",
            "1",
            ["correct", "total"],
        ),
        (
            "if i:\n    total += len(x)\n    correct += int(torch.sum(out.argmax(1) == y))",
            "1",
            ["correct", "total"],
        ),
        (
            "running += loss.item() * x.size(0)",
            "100 * running / len(loader.dataset)",
            ["running"],
        ),
        (  # a number of batches is not one of samples
            "k = 4 if i < 8 else len(loader) % 4\nrunning += loss.item() * k",
            "running / len(loader)",
            [],
        ),
        ("running += loss.item() * x.shape[0]", "running / len(train_set)", ["running"]),
        ("targets += y.tolist()", "1", ["targets"]),
        ("predictions.append(out.argmax(1).cpu().numpy())", "1", ["predictions"]),
        ("predictions.extend(out.detach().argmax(-1))", "1", ["predictions"]),
        (
            "preds = torch.cat((preds, out.argmax(1)))\ny_all = np.append(y_all, y)",
            "1",
            ["preds", "y_all"],
        ),
        ("targets.append(y)\npredictions.append(out.argmax(1))", "1", ["predictions", "targets"]),
        ("for t, p in zip(y.tolist(), out.argmax(1)):\n    matrix[t, p] += 1", "1", ["matrix"]),
        ("for t, p in zip(y, out.argmax(1)):\n    right[t].append(t == p)", "1", ["right"]),
        ("for t, p in zip(y, criterion(out, y)):\n    table[t] = p.item()", "1", ["table"]),
        ("seen.update(y.tolist())", "1", ["seen"]),
        ("certain[epoch, y] = out.detach().max(1)[0]", "1", ["certain"]),
        ("counts[y] += 1", "1", ["counts"]),
        ("top1.update(accuracy(out, y), x.size(0))", "1", ["top1"]),
        ("top1.update(accuracy(out, y), n=len(x))", "1", ["top1"]),
        # right as they are, or not of the samples
        ("losses[i] = loss.item()", "1", []),
        ("torch.log((out == y).sum(1) + 1e-12).mean()", "1", []),
        ("bar.update(len(x))\nlast.append(loss.item() if len(x) > 3 else 0)", "1", []),
        ("correct += out.argmax(1).eq(y).sum()\nbar.update(batch)", "1", ["correct"]),
        ("meter.update(loss.item(), x.size(0))", "1", []),
        ("bar.update(len(x))\nbest.update({'loss': loss.item()})", "1", []),
        ("onehot = torch.zeros(3, 3)\nonehot[range(3), y] = 1", "1", []),
        ("x[y] = 0\nkept.append(x)", "1", []),
        ("queue = torch.cat([queue, out.detach()])[-8:]", "1", []),
        ("running += loss.item()", "running / len(loader)", []),
        ("running += loss.item() * x.size(0)\ntotal += x.size(0)", "running / total", []),
        ("running += loss.item() * len(x)\nn += len(x)", "running / max(n, 1)", []),
        ("running += loss.item() * len(x)", "running / len(ds)", ["running"]),
        ("running += loss.item() * len(x)", "running / X.shape[0]", ["running"]),
        ("running += loss.item() * len(x)", "running / N", ["running"]),
        ("fisher[n] += p.grad.pow(2) * len(x)\nfisher[n] /= len(ds)", "1", ["fisher[n]"]),
        ("running = running + loss.item() * len(x)", "running / N", ["running"]),
        ("correct = correct + (out.argmax(1) == y).sum()", "1", ["correct"]),
        ("self.n = len(x) + self.n\nself.c = (out == y).sum() + self.c", "1", ["self.c", "self.n"]),
        ("right, n = hits(out, y)\nn = s.reduce(n, 'sum').item()\ntotal += n", "total", []),
        ("correct += (out.argmax(1) == y).sum()", "einops.reduce(x, 'b c -> b')", ["correct"]),
        ("correct += (out.argmax(1) == y).sum()", "reduce(add, [1, 2])", ["correct"]),
        ("targets.append(loss.item())", "1", []),
        ("targets.append(loss.detach().cpu().numpy())", "1", []),
        ("total += len(x)", "total", []),
        ("total += 1\ncorrect = (out.argmax(1) == y).float().mean()", "1", []),
        # by other names
        ("right = (out.argmax(1) == y).sum()\ncorrect += right.item()", "1", ["correct"]),
        ("n = len(x)\nrunning += loss.item() * n", "running / len(ds)", ["running"]),
        ("acc += (out.argmax(1) == y).float().mean()", "acc / 3", ["acc"]),
        # lists that something sums up
        ("kept.append((out == y).float().mean())", "torch.stack(kept).mean()", ["kept"]),
        ("kept.append(out.softmax(1).detach())", "torch.cat(kept)", ["kept"]),
        ("kept.append(accuracy(out, y))", "sum(kept) / len(kept)", ["kept"]),
        ("kept.append(loss.detach())", "torch.stack(kept).mean()", []),
        # all of them, or some, are combined
        ("correct += (out.argmax(1) == y).sum()", "s.reduce(correct, 'sum')", []),
        ("targets += y.tolist()", "dist.all_gather_object(None, targets)", []),
        ("kept.append((out == y).float().mean().item())", "s.reduce(sum(kept) / 3)", []),
        (
            "correct += (out == y).sum().item()\ntotal += len(x)\nseen += len(x)",
            "s.reduce(correct, 'sum') / s.reduce(torch.tensor([seen]), 'sum')",
            ["total"],
        ),
        # other samples
        ("for x, y in held_out:\n    correct += (model(x) == y).sum().item()", "correct", []),
        ("kept.append(torch.stack([model(x) for x in held_out]).mean().item())", "1", []),
    ],
)
def test_counts_are_found(tmp_path: Path, body: str, result: str, names: list[str]) -> None:
    assert sorted(found(tmp_path, body, result)) == names


EARLY = """
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = criterion(model(x), y)
    {before}
    scaler.scale(loss).backward()
    {after}
"""


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("total += loss.item()", "pass", {"loss": "loss.item() after loss.backward()"}),
        (
            "meter.update(loss.item(), len(x))",
            "pass",
            {"loss": "loss.item() after loss.backward()"},
        ),
        *(
            (total, "pass", {"loss": "loss.item() after loss.backward()"})
            for total in (
                "total += loss.detach()",
                "total += loss.detach().float()",
                "total += loss.detach().mean()",
                "total += loss.detach().to('cpu') * len(x)",
                "total += torch.sqrt(loss.detach())",
                "total = total + loss.data",
                "total = loss.item() + total",
                "losses = losses + [loss.item()]",
            )
        ),
        (
            "seen.append(loss.detach().clone())",
            "pass",
            {"loss": "loss.item() after loss.backward()"},
        ),
        ("seen.append(float(loss))", "pass", {"loss": "loss.item() after loss.backward()"}),
        (
            "value = loss.item()",
            "meter.update(loss=value)",
            {"value": "loss.item() after loss.backward()"},
        ),
        (
            "value = float(loss)",
            "mean = 0.9 * mean + 0.1 * value; print(mean)",
            {"value": "loss.item() after loss.backward()"},
        ),
        (
            "value = loss.item()",
            "if value < best: best = value",
            {"value": "loss.item() after loss.backward()"},
        ),
        ("total += loss", "print(total)", {"loss": "loss.item() after loss.backward()"}),
        (
            "psnr = mse2psnr(loss)",
            "print(psnr.item())",
            {"psnr": "mse2psnr(loss) after loss.backward()"},
        ),
        (
            "bits = loss / math.log(2)",
            "total += bits.item()",
            {"bits": "loss / math.log(2) after loss.backward()"},
        ),
        (
            "items = torch.cat((loss, loss)).detach()",
            "mean = (mean * i + items) / (i + 1); print(mean)",
            {"items": "loss.item() after loss.backward()"},
        ),
        ("stats = {'loss': loss}; same = loss.detach()", "print(stats, same)", {}),
        ("psnr = mse2psnr(loss)", "pass", {}),
        ("s.log('loss', loss)", "pass", {"loss": "loss.item() after loss.backward()"}),
        ("wandb.log({'a': loss})", "pass", {"loss": "loss.item() after loss.backward()"}),
        ("s.log('loss', loss, sync_dist=True); torch.log(loss)", "s.log('loss', loss)", {}),
        ("total += loss.data", "pass", {"loss": "loss.item() after loss.backward()"}),
        ("both = loss; both += loss; both.backward()", "pass", {}),
        ("value = loss.item(); math.isfinite(value)", "print(loss.item())", {}),
        ("pass", "value = loss.item(); print(value)", {}),
        ("seen.append(loss.detach())", "pass", {}),  # holds the mean after backward
        ("pass", "total += loss.item()", {}),
        ("if math.isnan(loss.item()): continue", "total += loss.item()", {}),
        (
            "print(y.max().item()); criterion(out, y).backward()",
            "pass",
            {"y.max()": "s.reduce(y.max())"},
        ),
    ],
)
def test_a_loss_that_is_read_before_its_backward(
    tmp_path: Path, before: str, after: str, names: dict[str, str]
) -> None:
    file = tmp_path / "early.py"
    file.write_text(EARLY.format(before=before, after=after))
    assert counted(str(file), 2) == names


@pytest.mark.parametrize(
    "after",
    [
        "total += loss.item()",
        "total += loss.data",
        "total += loss.detach().cpu()",
        "total += loss",
        "print('%.4f' % loss.detach().cpu().numpy())",
        "seen.append(loss.tolist())",
    ],
)
def test_a_loss_whose_backward_does_not_synchronise(tmp_path: Path, after: str) -> None:
    file = tmp_path / "window.py"
    file.write_text(EARLY.format(before="pass", after=after))
    facts = facts_of((str(file), 2))
    assert facts is not None and CountFinder(facts).found() == {}
    assert CountFinder(facts).found(is_synced=False) == {"loss": "s.reduce(loss)"}


READ = """
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    out, part = model(x)
    first = criterion(out, y)
    each = criterion(part, y, reduction="none")
    loss = first + 0.1 * each.mean() + sum([part])
    (loss / 4).backward()
    {after}
    for x, y in held_out:
        right = (model(x).argmax(1) == y).float().mean()
        print(right.item())
"""


@pytest.mark.parametrize(
    ("after", "names"),
    [
        ("acc = (out.argmax(1) == y).float().mean(); print(acc.item())", ["acc"]),
        ("acc = float((out.argmax(1) == y).float().mean()); seen.append(acc)", ["acc"]),
        ("if (out.argmax(1) != y).float().mean().item() < 0.1: break", None),
        ("last = each[:, -1].mean(); going = last.item() > 0.3", ["last"]),
        ("acc = accuracy(out, y); print(f'{acc}')", ["acc"]),
        (
            "mask = y.ge(1).float(); (each * mask).mean().backward(); print(mask.mean().item())",
            ["mask.mean()"],
        ),
        ("acc = accuracy(out, y); print('%d %f' % (i, acc))", ["acc"]),
        ("acc = accuracy(out, y); print('{}'.format(acc))", ["acc"]),
        ("top1, top5 = accuracy(out, y); writer.add_scalar('acc', top1[0], i)", ["top1"]),
        ("acc = accuracy(out, y); wandb.log({'acc': acc})", ["acc"]),
        ("acc = accuracy(out, y); bar.set_postfix(acc=acc)", ["acc"]),
        ("other = criterion(out, x); total += other.item()", ["other"]),
        (
            "other = model(x).sum(); other.backward(retain_graph=True); print(other.item())",
            ["other"],
        ),
        (
            "n = max(1, int(y.ge(1).sum())); (each.sum() / n).backward()",  # the graph shows it
            [],
        ),
        # the loss, parts of it, and what is made of them; sizes; what s.log reduces
        ("print(loss.item(), first.item(), part.item(), (loss / 2).item(), float(loss))", []),
        ("both = loss + first; print(both.item(), f'{both}')", []),
        ("print(len(x), x.shape, out.size(0), i, float(len(x)), loss, first)", []),
        ("acc = accuracy(out, y); s.log('acc', acc)", ["acc"]),
        ("acc = accuracy(out, y); s.log('acc', acc, on_epoch=True)", []),
        ("acc = accuracy(out, y); s.log('acc', acc, sync_dist=True)", []),
        ("rate = scheduler.get_last_lr()[0]; print(rate, float(rate), norm.item())", []),
        ("acc = accuracy(out, y); acc = s.reduce(acc); print(acc)", []),
    ],
)
def test_numbers_of_one_batch_that_are_read_or_shown(
    tmp_path: Path, after: str, names: list[str] | None
) -> None:
    file = tmp_path / "reading.py"
    file.write_text(READ.format(after=after))
    if names is None:
        names = ["(out.argmax(1) != y).float().mean()"]
    assert counted(str(file), 2) == {name: f"s.reduce({name})" for name in names}


AFTER = """
def train(loader, held_out, model, s):
    for epoch in range(3):
        right = running = 0
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            acc = (out.argmax(1) == y).float().mean()
            hits = (out.argmax(1) == y).sum()
            right += (out.argmax(1) == y).sum().item()
            running += loss.item()
            losses.update(loss.item(), len(x))
        {after}
    {last}
"""


@pytest.mark.parametrize(
    ("after", "last", "names"),
    [
        ("print(epoch, acc.item())", "pass", {"acc": ""}),
        ("pass", "print(f'{acc:.3f}')", {"acc": ""}),
        ("if epoch: print('%.3f' % (hits / len(y)))", "pass", {"hits / len(y)": ""}),
        ("print(hits)", "pass", {"hits": ", 'sum'"}),
        ("print(y.ne(-1).sum().item())", "pass", {"y.ne(-1).sum()": ", 'sum'"}),
        (
            "print((out.argmax(1) == y).sum().item())",
            "pass",
            {"(out.argmax(1) == y).sum()": ", 'sum'"},
        ),
        ("acc = acc.item(); print(acc)", "pass", {"acc": ""}),
        ("pass", "writer.add_scalar('acc', accuracy(out, y), 1)", {"accuracy(out, y)": ""}),
        # right as they are, found as counts, or of other batches
        ("print(loss.item(), running / len(loader), losses.avg, epoch)", "print(loss)", {}),
        ("acc = right / len(loader.dataset); print(acc)", "pass", {}),
        ("acc = s.reduce(acc); print(acc.item())", "print(s.reduce(hits, 'sum').item())", {}),
        ("for x, y in held_out: acc = top1(model(x), y)", "print(acc.item())", {}),
        ("acc = evaluate(model, held_out); print(acc.item())", "print(acc.item())", {}),
        ("out, y = model(x_test), y_test", "print((out.argmax(1) == y).float().mean().item())", {}),
    ],
)
def test_numbers_of_the_last_batch_that_are_read_after_the_loop(
    tmp_path: Path, after: str, last: str, names: dict[str, str]
) -> None:
    file = tmp_path / "after.py"
    file.write_text(AFTER.format(after=after, last=last))
    expected = {name: f"s.reduce({name}{how})" for name, how in names.items()}
    assert counted(str(file), 5) == expected | {"right": "s.reduce(right, 'sum')"}


SEEN = """
def train(loader, model, s):
    seen, losses = 0, 0.0
    for x, y in loader:
        {before}
        loss = criterion(model(x).reshape(-1, x.shape[1]), y)
        loss.backward()
        losses += {loss}
        seen += len(x)
    {after}
"""


@pytest.mark.parametrize(
    ("before", "loss", "after", "is_found"),
    [
        ("if seen >= 5000: break", "loss.item()", "pass", True),
        ("rate = 0.1 * max(0.1, 1 - seen / 5000)", "loss.item()", "pass", True),
        ("pass", "loss.item()", "return losses / seen", True),
        ("pass", "loss.item() * len(x)", "return losses / seen", False),
        ("pass", "len(x) * loss.item()", "return losses / seen if seen > 0 else 0.0", False),
        ("writer.add_scalar('step', 1, seen)", "loss.item()", "return losses / len(loader)", False),
    ],
)
def test_a_number_of_samples_that_decides_or_divides(
    tmp_path: Path, before: str, loss: str, after: str, is_found: bool
) -> None:
    file = tmp_path / "seen.py"
    file.write_text(SEEN.format(before=before, loss=loss, after=after))
    assert counted(str(file), 4) == ({"seen": "s.reduce(seen, 'sum')"} if is_found else {})


def test_a_loop_whose_backward_is_elsewhere_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.py"
    file.write_text("for x, y in loader:\n    loss = step(x, y)\n    print(loss, loss.item())\n")
    assert counted(str(file), 1) == {}


@pytest.mark.parametrize(
    ("divisor", "names"),
    [
        ("len(x)", ["len(x)"]),
        ("x.size(0)", ["x.size(0)"]),
        ("(n * 2)", ["n * 2"]),
        ("len(loader.dataset)", []),
        ("x.shape[1]", []),
        ("s.reduce(len(x), 'sum')", []),
    ],
)
def test_a_loss_that_is_divided_by_the_size_of_the_batch(
    tmp_path: Path, divisor: str, names: list[str]
) -> None:
    file = tmp_path / "divided.py"
    file.write_text(READ.format(after=f"n = len(x); print(loss.item() / {divisor})"))
    assert counted(str(file), 2) == {name: f"s.reduce({name}, 'sum')" for name in names}


TAKING = """
def endless():
    while True:
        for batch in loader:
            yield batch

class Trainer:
    def take(self):
        return next(self.batches)
    def step(self, x, y):
        out = self.model(x)
        loss = criterion(out, y)
        loss.backward()
        {counts}
        return loss, (out == y).sum()
    def fit(self):
        {loop}
            loss, right = self.step(x, y)
            {counted}
            validate(self.model, held_out)
        return {result}

def validate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x) == y).sum().item()
    print(correct)

def combined(value):
    value = torch.tensor(value)
    dist.all_reduce(value)
    return value

{after}
"""


@pytest.mark.parametrize("begin", ["for batch in loader:", "self.step(x, y)"])
@pytest.mark.parametrize(
    "loop",
    [
        "for x, y in endless():",
        "for step in range(9):\n            x, y = next(batches)",
        "while (batch := next(batches, None)):\n            x, y = batch",
        "while True:\n            x, y = self.take()",
    ],
)
@pytest.mark.parametrize(
    ("counts", "counted", "result", "after", "names"),
    [
        ("pass", "correct += right", "correct", "", ["correct"]),
        ("self.n += len(x)", "correct += right", "correct", "", ["correct", "self.n"]),
        ("self.right += (out == y).sum()", "pass", "self.right", "", ["self.right"]),
        ("print(loss.item())", "pass", "1", "", []),
        ("pass", "correct += right", "correct", "c = s.reduce(Trainer().fit())", []),
        ("pass", "correct += right", "combined(correct)", "", []),
        ("pass", "correct += right", "combined(right)", "", ["correct"]),
    ],
)
def test_loops_in_any_form_that_count_in_functions(
    tmp_path: Path,
    loop: str,
    counts: str,
    counted: str,
    result: str,
    after: str,
    names: list[str],
    begin: str,
) -> None:
    text = TAKING.format(loop=loop, counts=counts, counted=counted, result=result, after=after)
    file = tmp_path / "taking.py"
    file.write_text(text)
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if "backward()" in line or "self.step(" in line
    ]
    line = next(number for number, line in enumerate(text.splitlines(), 1) if begin in line)
    facts = facts_of(*((str(file), number) for number in (*lines, line)))
    assert facts is not None
    assert sorted(CountFinder(facts).found()) == names


KEEPING = """
for x, y in loader:
    out = model(x)
    key = out.detach()
    loss = criterion(out, y)
    {before}
    loss.backward()
    {after}
"""


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("loss = loss + (out @ queue.T).mean()", "queue = torch.cat([queue, key])[-8:]", ["queue"]),
        ("loss += 0", "queue = torch.cat([queue, key])[-8:]", []),
        ("loss = loss + (out @ queue).mean()", "queue[:, place : place + 4] = key.T", ["queue"]),
        ("loss = loss + (out @ bank[y].T).mean()", "bank[y] = out.detach()", ["bank"]),
        ("static[:4] = x; loss = model(static).sum()", "seen[y] = 1", []),
        ("t = torch.zeros(4); loss = (out * t).sum()", "t[y] = out[0]", []),
        ("far = out - mean; loss = far.sum()", "mean = 0.9 * mean + 0.1 * out.mean(0)", ["mean"]),
        (
            "t, u = model(x), out - mean; loss = u.sum()",
            "mean = 0.9 * mean + 0.1 * t.mean(0)",
            ["mean"],
        ),
        ("out, state = model(x, state); loss = out.sum()", "state = state.detach()", []),
        ("loss = loss / scale", "scale = 0.9 * scale + 0.1 * loss.item()", []),
        ("total = loss + 1; loss = total + loss", "total = total + loss", []),
    ],
)
def test_variables_that_are_filled_from_the_batches_and_enter_later_losses(
    tmp_path: Path, before: str, after: str, names: list[str]
) -> None:
    file = tmp_path / "keeping.py"
    file.write_text(KEEPING.format(before=before, after=after))
    facts = facts_of((str(file), 2))
    assert facts is not None and ShareDependence(facts).held() == names


def test_what_has_no_source_counts_nothing(tmp_path: Path) -> None:
    assert counted("<stdin>", 1) == {} == counted(str(tmp_path / "none.py"), 1)
    broken = tmp_path / "broken.py"
    broken.write_text("for x in")
    assert counted(str(broken), 1) == {}


def test_the_remedy_names_each(tmp_path: Path) -> None:
    given = found(tmp_path, "correct += (out == y).sum()\ntargets.extend(y.tolist())")
    assert given == {
        "correct": "s.reduce(correct, 'sum')",
        "targets": "s.all_gather_object(targets)",
    }


PHASES = """
def train(loaders, model):
    for phase in ["train", "val"]:
        running = 0.0
        for x, y in loaders[phase]:
            with torch.set_grad_enabled({mode}):
                loss = criterion(model(x), y)
                if phase == "train":
                    loss.backward()
            running += loss.item() * x.size(0)
        print(running / 100)
"""


@pytest.mark.parametrize(("mode", "is_both"), [("phase == 'train'", True), ("True", False)])
def test_a_loop_that_also_evaluates(tmp_path: Path, mode: str, is_both: bool) -> None:
    """What its training reduces would be too large in its evaluation."""
    file = tmp_path / "phases.py"
    file.write_text(PHASES.format(mode=mode))
    facts = facts_of((str(file), 5))
    assert facts is not None and facts.also_evaluates is is_both
    assert counted(str(file), 5) == {"running": "s.reduce(running, 'sum')"}
