"""The recorded steps, compared with torch's schedule."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction, schedule
from torchbus import session
from torchbus.errors import UsageError

from torchbus_profile.plan import LEAST, plan

RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


@given(st.fixed_dictionaries({word: st.integers(least, 4) for word, least in LEAST.items()}))
def test_the_steps_of_torchs_schedule(words):
    ours = plan(words)
    found = set()
    for made in range(60):
        if ours.begins(made):
            found |= set(range(made + words["warmup"], made + words["warmup"] + words["active"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about some of its schedules
        theirs = schedule(**words)
    assert {one for one in found if one < 60} == {
        step for step in range(60) if theirs(step) in RECORDS
    }
    assert ours.first_step == min(found) + 1


@pytest.mark.parametrize("nothing", [False, None])
def test_nothing(nothing):
    assert plan(nothing) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": 3}, "profile=3 is an int: it must be True, or a dict"),
        (
            {"profile": "simple"},
            "profile='simple': it must be True, for a table of three steps. For the seconds of"
            " each function over the whole run, use `python -m cProfile -s cumtime`",
        ),
        (
            {"profile": {"skip": 3}},
            "profile={'skip': 3}: unknown 'skip': use skip_first, wait, warmup, active, repeat,",
        ),
        (
            {"profile": {"active": 0}},
            "profile={'active': 0}: active must be a number of real steps, at least 1",
        ),
        ({"profile": {"wait": True}}, "wait must be a number of real steps, at least 0"),
        ({"profile": {"warmup": 0}}, "warmup must be a number of real steps, at least 1"),
        (
            {"profile": {"with_stack": 3}},
            "profile={'with_stack': 3}: with_stack must be True or False",
        ),
        ({"profile": True, "profile_folder": 3}, "profile_folder=3 is an int: it must be a path"),
        ({"profile": True, "memory_snapshot": 3}, "memory_snapshot=3 is an int"),
        ({"profile_folder": "x"}, "profile_folder='x' without profile=...: it would do nothing"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(UsageError) as raised:
        session(strategy=None, **options)
    assert message in str(raised.value)


def test_snapshots_need_cuda(tmp_path):
    with (
        pytest.raises(UsageError, match="memory_snapshot=True on cpu: only CUDA's allocator keeps"),
        session(strategy=None, profile=True, profile_folder=tmp_path, memory_snapshot=True),
    ):
        pass


def test_profiled_needs_the_option():
    with session(strategy=None) as s, pytest.raises(UsageError) as raised:
        s.profiled()
    assert "s.profiled without profile=...: it would always be the same" in str(raised.value)


def test_what_explain_says(tmp_path):
    words = {"skip_first": 1, "repeat": 3, "with_stack": True}
    with session(strategy=None, profile=words, profile_folder=tmp_path) as s:
        lines = " ".join(s.explain().split())
        end_early(s)
    assert "real steps 4 to 6, and again every 5, 3 times, with_stack; each rank writes" in lines


def end_early(s):
    """Without a recorded step, the session would warn."""
    for _, plugin in s._context.bus.plugins():
        if hasattr(plugin, "_plan"):
            plugin._plan = None
