"""Words and numbers of the reports."""

from __future__ import annotations

import pytest

from planner.report.words import (
    format_count,
    format_exact_duration,
    format_number,
    format_percent,
    joined,
    layer_ranges,
    plural,
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["embedding", "layers.0", "layers.1", "layers.2", "norm"], "embedding, layers.0-2, norm"),
        (["layers.3"], "layers.3"),
        (["layers.3", "layers.5"], "layers.3, layers.5"),
        (["encoder.layers.10", "encoder.layers.11", "decoder.layers.0"], "encoder.layers.10-11, decoder.layers.0"),
        (["layers.9", "layers.10", "mtp.0"], "layers.9-10, mtp.0"),
        (["a1b", "a1b"], "a1b, a1b"),
        ([], ""),
    ],
)
def test_consecutive_layers_run_together(names: list[str], expected: str) -> None:
    assert layer_ranges(names) == expected


def test_numbers_have_three_figures_or_separators() -> None:
    assert [format_number(x) for x in (0.01234, 1.5, 99.94, 12345.6)] == ["0.0123", "1.5", "99.9", "12,346"]


def test_counts_have_a_scale() -> None:
    assert [format_count(x) for x in (12, 4096, 8_030_261_248, 15e12)] == ["12", "4.10 k", "8.03 B", "15.00 T"]


def test_compared_durations_have_four_figures() -> None:
    texts = [format_exact_duration(x) for x in (12.345678, 0.2520, 0.0000314159, 12345.6, 1234.56)]
    assert texts == ["12.35 s", "252 ms", "31.42 us", "12,346 s", "1,235 s"]
    assert [format_exact_duration(x, 5) for x in (158.7612, 1234.56, 12345.6)] == ["158.76 s", "1,234.6 s", "12,346 s"]


def test_the_last_of_several_words_comes_after_and() -> None:
    assert [joined(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_percent_and_plural() -> None:
    assert format_percent(0.00843, 2) == "0.84 %"
    assert [plural("micro-batch", n) for n in (1, 2)] == ["micro-batch", "micro-batches"]
    assert plural("stage", 2) == "stages"


def test_brief_counts_have_three_figures() -> None:
    counts = (12, 999, 8_030_261_248, 70_553_706_496, 405_853_388_800, 9_996_000, 99_960_000)
    brief = [format_count(count, brief=True) for count in counts]
    assert brief == ["12", "999", "8.03 B", "70.6 B", "406 B", "10.0 M", "100 M"]
