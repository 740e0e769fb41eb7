"""What counts as trained on: counts of windows against those that the loop makes by itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session

LOOPS = runpy.run_path(str(Path(__file__).parent / "scripts" / "loops.py"))
loader, make, loss_of, WIDTH = (LOOPS[name] for name in ("loader", "make", "loss_of", "WIDTH"))


def windows(loop, **options):
    """What the verb tells after each real step of a loop that yields then, one per window."""
    found = []
    with session(strategy=None, **{"throughput_every": 1} | options) as s:
        for _ in loop():
            last = s.throughput()
            if last is not None and (not found or last.step > found[-1].step):
                found.append(last)
    return found


def plain():
    model, optimizer = make()
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            yield
        with torch.no_grad():
            for x, y in loader(samples=9):
                loss_of(model, x, y)


def test_a_ragged_end_and_evaluation():
    found = windows(plain)
    assert [one.samples for one in found] == [4, 4, 4, 4, 4, 2] * 2
    assert [one.step for one in found] == list(range(1, 13))
    assert {one.steps for one in found} == {1}
    assert {one.tokens for one in found} == {None}


@pytest.mark.parametrize(("every", "samples"), [(4, [16, 14, 14]), (6, [22, 22]), (12, [44])])
def test_windows_of_several_steps(every, samples):
    found = windows(plain, throughput_every=every)
    assert [one.samples for one in found] == samples
    assert [one.step for one in found] == list(range(every, 13, every))


@pytest.mark.parametrize(
    ("collate", "tokens"),
    [
        ("as_dict", "words"),
        ("as_tuple", 0),
        ("as_object", "words"),
        ("as_object", lambda batch: batch.words.numel()),
        ("as_dict", lambda batch: sum(WIDTH for _ in batch["words"])),
    ],
)
def test_tokens_of_batches_of_any_kind(collate, tokens):
    def loop():
        model, optimizer = make()
        for batch in loader(collate=LOOPS[collate]):
            x, y = batch if isinstance(batch, tuple) else dict_of(batch).values()
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            yield

    found = windows(loop, tokens=tokens)
    assert [one.tokens for one in found] == [WIDTH * rows for rows in (4, 4, 4, 4, 4, 2)]
    assert [one.samples for one in found] == [4, 4, 4, 4, 4, 2]


def dict_of(batch):
    return batch if isinstance(batch, dict) else vars(batch)


def test_rates_are_counts_by_seconds():
    for one in windows(plain, tokens=0):
        assert one.seconds > 0
        assert one.samples_per_sec == one.samples / one.seconds
        assert one.tokens_per_sec == one.tokens / one.seconds
        assert one.steps_per_sec == 1 / one.seconds
        assert one.device.samples_per_sec == one.samples_per_sec
        assert one.flops_per_sec is one.mfu is one.joules_per_sample is None


def test_a_window_of_accumulation_has_all_its_batches():
    def loop():
        model, optimizer = make()
        for number, (x, y) in enumerate(loader(), 1):
            loss_of(model, x, y).backward()
            if number % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
                yield

    assert [one.samples for one in windows(loop)] == [12, 10]


def test_a_batch_that_two_models_step_with_counts_once():
    """A GAN: D and G step in turn with the same batch, G without reading it."""

    def loop():
        (d, of_d), (g, of_g) = make(0), make(1)
        to_x = torch.nn.Linear(1, WIDTH)
        for x, y in loader():
            of_d.zero_grad()
            (loss_of(d, x, y) + d(to_x(g(x)).detach()).mean()).backward()
            of_d.step()
            of_g.zero_grad()
            d(to_x(g(torch.ones(4, WIDTH)))).mean().backward()
            of_g.step()
            yield

    # a window ends when its first optimizer has stepped
    found = windows(loop, throughput_every=2)
    assert [(one.step, one.samples) for one in found] == [(2, 8), (4, 8), (6, 6)]


def test_a_batch_that_is_stepped_with_twice_counts_once():
    def loop():
        model, optimizer = make()
        for x, y in loader():
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
                yield

    assert sum(one.samples or 0 for one in windows(loop)) == 22


def test_batches_in_a_list_count_each_time():
    def loop():
        model, optimizer = make()
        batches = list(loader())
        for _ in range(3):
            for x, y in batches:
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
                yield

    assert sum(one.samples or 0 for one in windows(loop)) == 66


def test_a_closure_counts_its_batch_once():
    def loop():
        model, _ = make()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        for x, y in loader():

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                return loss

            optimizer.step(closure)
            yield

    assert [one.samples for one in windows(loop)] == [4, 4, 4, 4, 4, 2]


def test_a_loop_without_a_loader_has_steps_and_no_samples():
    def loop():
        model, optimizer = make()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, WIDTH)).mean().backward()
            optimizer.step()
            yield

    found = windows(loop)
    assert [(one.steps, one.samples, one.samples_per_sec) for one in found] == [(1, None, None)] * 3
    assert all(one.steps_per_sec > 0 for one in found)


def test_batches_by_hand_of_a_loader_without_tensors_in_front():
    def loop():
        model, optimizer = make()
        for batch in DataLoader(list(range(6)), batch_size=2, collate_fn=lambda rows: ("id", rows)):
            optimizer.zero_grad()
            model(torch.ones(len(batch[1]), WIDTH)).mean().backward()
            optimizer.step()
            yield

    found = windows(loop, tokens=lambda batch: 3 * len(batch[1]))
    assert [one.tokens for one in found] == [6, 6, 6]


def test_a_session_without_a_logger_prints_a_line(capsys):
    windows(plain, tokens=0, throughput_every=50)
    line = capsys.readouterr().out
    assert line.startswith("throughput: 12 steps in ")
    assert "; 44 samples, " in line and f"; {44 * WIDTH} tokens, " in line


def test_a_loop_that_fails_prints_no_line(capsys):
    with pytest.raises(ZeroDivisionError), session(strategy=None, throughput_every=1):
        for _ in plain():
            raise ZeroDivisionError
    assert capsys.readouterr().out == ""


def test_the_verb_alone_starts_it():
    with session(strategy=None) as s:
        assert s.throughput() is None
        for _ in plain():
            assert s.throughput() is None  # 12 steps are no window of 50
    with session("throughput", strategy=None) as s:
        assert "throughput  every 50 real steps" in s.explain()
