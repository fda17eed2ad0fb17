"""Quantities: what is read, what is refused, what is printed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.spec.units import (
    QuantityError,
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_fraction,
    format_rate,
    format_work,
    parse_bandwidth,
    parse_batch,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_flops,
    parse_fraction,
    parse_price,
    parse_tokens,
    parse_work,
)


def refused(parse, value: object) -> str:
    with pytest.raises(QuantityError) as caught:
        parse(value)
    return caught.value.problems[0].render()


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GB", 80_000_000_000),
        ("80 GB", 80_000_000_000),
        ("80GiB", 85_899_345_920),
        ("80 GiB", 85_899_345_920),
        ("1.5 GiB", 1_610_612_736),
        ("64 kB", 64_000),
        ("64 KiB", 65_536),
        ("1e3 MB", 1_000_000_000),
        ("  2 TB ", 2_000_000_000_000),
        ("85899345920 B", 85_899_345_920),
    ],
)
def test_gb_is_ten_to_the_ninth_and_gib_is_two_to_the_thirtieth(text: str, num_bytes: int):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("80", "'80' has no unit; write '80 GB' (10^9 bytes) or '80 GiB' (2^30 bytes)"),
        (80, "'80' has no unit; write '80 GB' (10^9 bytes) or '80 GiB' (2^30 bytes)"),
        ("80 G", "write '80 GB' (powers of 10) or '80 GiB' (powers of 2)"),
        ("80 Gi", "write '80 GB' (powers of 10) or '80 GiB' (powers of 2)"),
        ("80 Gb", "a small b means bits; write '80 GB' (powers of 10) or '80 GiB'"),
        ("80 Gbit", "memory is counted in bytes"),
        ("80 KB", "write '80 kB' (powers of 10) or '80 KiB' (powers of 2)"),
        ("80 GiX", "unknown unit 'GiX'; did you mean 'GiB'?"),
        ("80 GIB", "did you mean 'GiB'?"),
        ("80e9", "'80e9' has no unit; write '80e9 B'"),
        (8e10, "'80000000000' has no unit; write '80000000000 B'"),
        (85899345920, "write '85899345920 B'"),
        ("-80 GB", "is negative"),
        ("0 GB", "is zero"),
        ("nan GB", "is not a finite number"),
        (float("nan"), "is not a finite number"),
        (float("inf"), "is not a finite number"),
        ("1e999 GB", "is absurdly large"),
        ("1e99999 GB", "absurdly large or small"),
        ("1,5 GB", "a comma is read in two ways; write '1.5'"),
        ("٨٠ GB", "is not a number"),
        (True, "is true, not a size"),
        (None, "is empty; write a size like '80 GiB'"),
        ([80], "is a list, not a size"),
        ({}, "is a mapping, not a size"),
        ("9" * 100, "is a text of 100 characters"),
    ],
)
def test_a_size_that_two_readers_could_take_for_two_amounts_is_refused_with_advice(value: object, advice: str):
    assert advice in refused(parse_bytes, value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400 Gbps", 50e9),
        ("400Gbit/s", 50e9),
        ("50 GB/s", 50e9),
        ("8 Mbps", 1e6),
        ("1 GiB/s", 2.0**30),
        ("1.6 TB/s", 1.6e12),
        ("3 MB/s", 3e6),
        ("1e9 B/s", 1e9),
    ],
)
def test_bits_and_bytes_per_second_are_kept_apart(text: str, bytes_per_s: float):
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("100 Gb/s", "write '100 Gbps' (bits) or '100 GB/s' (bytes)"),
        ("100 GBps", "write '100 Gbps' (bits) or '100 GB/s' (bytes)"),
        ("100 GB", "it names no amount per second"),
        ("100 G", "it names no amount per second"),
        ("16 GT/s", "transfers a second are no bytes"),
        ("100 gbps", "did you mean 'Gbps'?"),
        (1e9, "'1000000000' has no unit; write '1000000000 bps' (bits) or '1000000000 B/s' (bytes)"),
        ("100", "write '100 Gbps' (bits) or '100 GB/s' (bytes)"),
        ("1 bps", "is absurdly small"),
    ],
)
def test_a_bandwidth_that_may_be_bits_or_bytes_is_refused_with_both(value: object, advice: str):
    assert advice in refused(parse_bandwidth, value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 us", 5e-6),
        ("5 µs", 5e-6),
        ("3 ms", 3e-3),
        ("25 s", 25.0),
        ("2 min", 120.0),
        ("1.5 h", 5400.0),
        ("2 d", 172800.0),
    ],
)
def test_durations(text: str, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("5 m", "it may mean minutes or milliseconds; write '5 min' or '5 ms'"),
        ("5 sec", "did you mean '5 s'?"),
        ("2 hours", "did you mean '2 h'?"),
        ("5", "write '5 s', '5 ms' or '5 us'"),
        ("1:30", "write it in one unit, like '90 s'"),
        ("0 s", "is zero"),
        ("-1 s", "is negative"),
    ],
)
def test_a_duration_without_a_clear_unit_is_refused(value: object, advice: str):
    assert advice in refused(parse_duration, value)


def test_zero_needs_no_unit_where_zero_makes_sense():
    assert parse_duration(0, zero=True) == 0.0
    assert parse_bytes("0 B", zero=True) == 0
    assert "is false" in refused(lambda v: parse_duration(v, zero=True), False)


def test_flops_is_a_rate_and_flop_is_an_amount():
    assert parse_flops("312 TFLOPS") == parse_flops("312 TFLOP/s") == 312e12
    assert parse_flops("1.2 PFLOPS") == 1.2e15
    assert parse_work("3 TFLOP") == parse_work("3 TFLOPs") == 3e12
    assert "did you mean '312 TFLOPS'?" in refused(parse_flops, "312 TFLOPs")
    assert "integer operations do not count" in refused(parse_flops, "300 TOPS")
    assert "it is a rate" in refused(parse_work, "3 TFLOPS")


def test_a_share_is_in_percent_and_a_bare_number_only_where_it_is_clear():
    assert parse_fraction("6 %") == 0.06
    assert parse_fraction(0) == 0.0
    assert parse_fraction(0.72, bare=True) == 0.72
    assert "write '6 %'" in refused(parse_fraction, 6)
    assert "write '1 %' or '0.01 %'" in refused(parse_fraction, 0.01)
    assert "between 0 % and 100 %" in refused(parse_fraction, "150 %")


@pytest.mark.parametrize(("value", "count"), [(4, 4), ("4", 4), (1e9, 10**9), ("1e9", 10**9), ("2.0", 2)])
def test_a_count_is_a_bare_whole_number(value: object, count: int):
    assert parse_count(value) == count


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (1.5, "is not a whole number"),
        ("4k", "counts are bare numbers"),
        ("8 chips", "counts are bare numbers"),
        ("010", "some readers take it as octal; write 10"),
        ("1_000", "has separators; write 1000"),
        ("1,000", "has separators; write 1000"),
        ("0x10", "counts are bare numbers"),
        ("1:30", "is not a number"),
        ("yes", "is not a number"),
        (True, "is true, not a count"),
        (0, "is too small; a count lies between 1 and"),
        (-3, "is too small"),
        (10**30, "is too large"),
        (float("inf"), "is not a finite number"),
    ],
)
def test_a_count_that_is_not_plainly_a_number_is_refused(value: object, advice: str):
    assert advice in refused(parse_count, value)


def test_a_batch_counts_sequences_or_tokens():
    assert parse_batch(2048) == parse_batch("2048 sequences") == (2048, "sequences")
    assert parse_batch("8388608 tokens") == (8_388_608, "tokens")
    assert parse_batch("4 M tokens") == parse_batch("4M tokens") == (4_000_000, "tokens")
    assert "has no unit" in refused(parse_batch, "4M")
    assert "unknown unit 'samples'" in refused(parse_batch, "4 samples")


def test_tokens_to_train_on_may_be_scaled():
    assert parse_tokens("15 T tokens") == parse_tokens("15T tokens") == parse_tokens("15e12 tokens") == 15 * 10**12
    assert parse_tokens(2e9) == 2 * 10**9
    assert "like '15 T tokens'" in refused(parse_tokens, "15T")


def test_a_price_is_money_per_chip_hour():
    assert parse_price("1.80 USD/h") == (1.8, "USD")
    assert parse_price("2 EUR/chip-hour") == (2.0, "EUR")
    assert "write '1.8 USD/h'" in refused(parse_price, 1.8)
    assert "three-letter code" in refused(parse_price, "2 usd/h")
    assert "prices are per chip-hour" in refused(parse_price, "40 USD/day")
    assert "is not a price" in refused(parse_price, "$2")


@settings(deadline=None)
@given(st.integers(1, 10**6), st.sampled_from(["", " ", "  "]))
def test_every_spacing_reads_as_the_same_exact_number_of_bytes(number: int, space: str):
    assert parse_bytes(f"{number}{space}GiB") == number * 2**30
    assert parse_bytes(f"{number}{space}MB") == number * 10**6


@settings(deadline=None)
@given(st.integers(2**20, 2**59))
def test_printed_bytes_read_back_within_the_printed_decimal(num_bytes: int):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.051)


@settings(deadline=None)
@given(st.floats(1e3, 9e14))
def test_printed_rates_read_back_within_the_printed_decimal(rate: float):
    assert parse_bandwidth(format_rate(rate)) == pytest.approx(rate, rel=0.051)


@settings(deadline=None)
@given(st.floats(1e-9, 9e8))
def test_printed_durations_read_back_within_the_printed_decimal(seconds: float):
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.051)


@settings(deadline=None)
@given(st.floats(1e6, 9e18))
def test_printed_compute_rates_read_back_within_the_printed_decimal(rate: float):
    assert parse_flops(format_flops(rate)) == pytest.approx(rate, rel=0.051)


@settings(deadline=None)
@given(
    st.text(max_size=80) | st.integers() | st.floats() | st.booleans() | st.none(),
    st.sampled_from(
        [
            parse_bytes,
            parse_bandwidth,
            parse_duration,
            parse_flops,
            parse_fraction,
            parse_count,
            parse_batch,
            parse_price,
        ]
    ),
)
def test_anything_at_all_is_read_or_refused_as_bad_input(value: object, parse):
    try:
        parse(value)
    except InputError as error:
        assert error.exit_code == 2
        assert "\n" not in error.problems[0].render()


def test_printed_forms_have_one_decimal_and_a_unit():
    assert format_bytes(81_604_378_624) == "76.0 GiB"
    assert format_bytes(-2.5 * 2**30) == "-2.5 GiB"
    assert format_bytes(1023.99 * 2**20) == "1.0 GiB"
    assert format_bytes(512) == "512 B"
    assert format_duration(0.00123) == "1.2 ms"
    assert format_duration(59.96) == "60.0 s"
    assert format_duration(5400) == "90.0 min"
    assert format_duration(0) == "0.0 s"
    assert format_rate(25e9) == "25.0 GB/s"
    assert format_rate(999.96e6) == "1.0 GB/s"
    assert format_flops(312e12) == "312.0 TFLOPS"
    assert format_work(1.5e12) == "1.5 TFLOP"
    assert format_fraction(0.06) == "6.0 %"
    assert format_count(8_030_261_248) == "8,030,261,248"


def test_a_refused_quantity_survives_the_way_between_processes():
    error = QuantityError("what", "why", "fix")
    assert pickle.loads(pickle.dumps(error)).problems == error.problems
