"""The family of cases."""

from __future__ import annotations

import pytest

from planner.bench.cases import CASES, Case, select
from planner.bench.results import CaseResult
from planner.bench.run import granted_s
from planner.errors import InputError
from planner.spec import load_cluster, load_model
from tests.bench.handmade import case


def test_names_are_unique_and_every_file_is_shipped() -> None:
    assert len({each.name for each in CASES}) == len(CASES)
    for each in CASES:
        load_cluster(each.cluster)
        load_model(each.model)


def test_the_family_goes_from_8_to_131072_chips_of_one_to_eight_types_smallest_first() -> None:
    clusters = [load_cluster(each.cluster) for each in CASES]
    chips = [cluster.num_chips for cluster in clusters]
    types = {len({group.chip for group in cluster.node_groups}) for cluster in clusters}
    assert (chips[0], chips[-1]) == (8, 131072) and chips == sorted(chips)
    assert (min(types), max(types)) == (1, 8)
    assert {each.pipelines for each in CASES} == {"mixed", "identical"}


def test_cases_are_chosen_by_name_in_the_order_of_the_family() -> None:
    family = (Case("a", "c", "m", 1, quick=True), Case("b", "c", "m", 1), Case("c", "c", "m", 1, quick=True))
    assert [each.name for each in select(family=family)] == ["a", "b", "c"]
    assert [each.name for each in select(["c", "a"], family=family)] == ["a", "c"]
    assert [each.name for each in select(quick=True, family=family)] == ["a", "c"]


def test_every_unknown_name_is_reported() -> None:
    with pytest.raises(InputError) as caught:
        select(["1024-mixd", "16384"], quick=True)
    assert caught.value.render().splitlines()[1:] == [
        "error: --only: '16384' is no quick case; --quick leaves it out; leave one of the two out"
    ]
    with pytest.raises(InputError, match="did you mean '1024-mixed'"):
        select(["1024-mixd"])


def test_with_a_baseline_a_case_has_as_many_loops_of_search_as_it_had_there() -> None:
    asked = Case("8-h100", "one-node-h100", "llama-3.1-8b", 10, "identical")
    earlier = CaseResult.model_validate(case(calibration_s=2.0))  # 10 s at 2 s a loop: 5 loops
    assert granted_s(asked, 0.01, earlier, calibration_s=3.0) == 15.0
    assert granted_s(asked, 0.01, None, calibration_s=3.0) == 10.0
    changed = Case("8-h100", "one-node-h100", "llama-3.1-8b", 20, "identical")
    assert granted_s(changed, 0.01, earlier, calibration_s=3.0) == 20.0
