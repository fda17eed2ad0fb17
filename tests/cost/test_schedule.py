"""Schedules in closed form."""

from planner.cost.schedule import in_flight_counts, stage_actions


def test_1f1b_holds_one_micro_batch_less_a_stage_towards_the_end() -> None:
    assert in_flight_counts("1f1b", 4, 16) == (4, 3, 2, 1)


def test_1f1b_never_holds_more_than_there_are() -> None:
    assert in_flight_counts("1f1b", 4, 2) == (2, 2, 2, 1)


def test_gpipe_holds_every_micro_batch() -> None:
    assert in_flight_counts("gpipe", 3, 5) == (5, 5, 5)


def test_eager_1f1b_warms_up_twice_as_far() -> None:
    assert in_flight_counts("eager_1f1b", 4, 16) == (7, 5, 3, 1)


def test_actions_of_a_stage_with_two_in_flight() -> None:
    assert stage_actions(2, 4) == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]


def test_actions_of_gpipe_are_all_forwards_then_all_backwards() -> None:
    assert stage_actions(3, 3) == ["F0", "F1", "F2", "B0", "B1", "B2"]
