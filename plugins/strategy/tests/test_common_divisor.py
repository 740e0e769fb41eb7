"""Whether ranks divide their losses by one number of all ranks, or each by a count of its own that
is equal by chance.
"""

from __future__ import annotations

from torchbus_strategy.loss.units import CommonDivisor


def test_a_number_of_samples_is_none_though_all_ranks_have_the_same() -> None:
    found = CommonDivisor()
    assert not found.judge(True, 2.0, 6, 3)
    assert not found.judge(True, 2.0, 2, 3)  # two ranks are left without samples and repeat two


def test_what_the_script_has_taken_from_all_ranks_is_one_and_counts_repeated_samples() -> None:
    found = CommonDivisor()
    assert found.judge(True, 3.5, 12, 2) and not found.has_counted_repeated
    assert found.judge(True, 6.0, 12, 2)  # as many as samples, by chance
    assert found.judge(True, 1.5, 2, 2) and found.has_counted_repeated


def test_a_constant_is_one_from_the_first_step_in_which_it_is_no_number_of_samples() -> None:
    found = CommonDivisor()
    assert not found.judge(True, 6.0, 12, 2)
    assert found.judge(True, 6.0, 2, 2) and not found.has_counted_repeated


def test_counts_of_each_ranks_own_are_none_once_they_have_differed() -> None:
    found = CommonDivisor()
    assert not found.judge(False, 4.0, 12, 2)
    assert not found.judge(True, 3.0, 12, 2)
    assert not found.judge(True, 1.0, 2, 2)
    assert not found.judge(False, None, 12, 2)
