"""The shipped chip profiles: complete sources, no sparse peaks, no precision that the hardware lacks."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.spec import load_profile, profile_names
from planner.spec.units import parse_bandwidth, parse_bytes, parse_flops

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "profiles").glob("*.yaml"))
DOCUMENTS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in FILES}
NAMES = sorted(DOCUMENTS)
REQUIRED = {
    "nvidia-a100-80gb-sxm",
    "nvidia-a100-40gb-sxm",
    "nvidia-h100-80gb-sxm",
    "nvidia-h200-141gb-sxm",
    "nvidia-b200-180gb-sxm",
    "nvidia-v100-32gb-sxm",
    "nvidia-v100-16gb-sxm",
    "nvidia-l40s-48gb",
    "nvidia-rtx-4090-24gb",
    "nvidia-rtx-3090-24gb",
    "amd-mi300x-192gb",
    "amd-mi250x-128gb",
    "huawei-ascend-910b-64gb",
    "intel-gaudi2-96gb",
    "google-tpu-v5p-95gb",
}
SPARSE_BF16 = {  # with sparsity or with fp16 accumulation, as data sheets and lists print them
    "nvidia-a100-80gb-sxm": 624e12,
    "nvidia-h100-80gb-sxm": 1979e12,
    "nvidia-h200-141gb-sxm": 1979e12,
    "nvidia-b200-180gb-sxm": 4500e12,
    "nvidia-l40s-48gb": 733e12,
    "nvidia-l4-24gb": 242e12,
    "nvidia-rtx-3090-24gb": 142e12,
    "nvidia-rtx-4090-24gb": 330.3e12,
    "nvidia-rtx-5090-32gb": 838e12,
    "amd-mi300x-192gb": 2614.9e12,
    "aws-trainium2-96gb": 2563e12,
}
FIGURES = ("memory", "reported_memory", "memory_bandwidth", "chips_per_node", "host_staging")
NESTED = ("peak", "intra_node", "nic")


def figure_paths(document: dict[str, Any]) -> set[str]:
    """Every figure of a profile, as the path under which its source stands."""
    paths = {key for key in FIGURES if key in document}
    paths |= {f"{key}.{inner}" for key in NESTED for inner in document.get(key, {})}
    for key, value in document.get("measured", {}).items():
        inner = [f".{precision}" for precision in value] if isinstance(value, dict) else [""]
        paths |= {f"measured.{key}{part}" for part in inner}
    return paths


def matching(pattern: str) -> list[str]:
    return [name for name in NAMES if re.search(pattern, name)]


def trusted(document: dict[str, Any]) -> bool:
    return document["trust"] in ("good", "medium")


def test_at_least_40_chips_are_shipped():
    assert len(NAMES) >= 40
    assert set(profile_names()) == set(NAMES)


def test_the_promised_names_exist():
    assert set(NAMES) >= REQUIRED


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_loads_under_its_file_name(name: str):
    chip = load_profile(name, None)
    assert chip.name == name
    assert chip.vendor == name.split("-")[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source_and_every_source_a_figure(name: str):
    document = DOCUMENTS[name]
    assert set(document["sources"]) == figure_paths(document)
    assert all(len(source) >= 10 for source in document["sources"].values())


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_vendor_model_memory_form(name: str):
    match = re.fullmatch(r"(?P<vendor>[a-z]+)-[a-z0-9-]+-(?P<memory>\d+)gb(-(sxm|pcie|nvl|nvl72))?", name)
    assert match is not None
    assert DOCUMENTS[name]["vendor"] == match["vendor"]
    assert re.fullmatch(rf"{match['memory']} Gi?B", DOCUMENTS[name]["memory"])


@pytest.mark.parametrize("name", matching("nvidia-(v100|t4|titan-rtx|rtx-2080)"))
def test_volta_and_turing_have_no_bf16_and_no_fp8(name: str):
    assert set(DOCUMENTS[name]["peak"]) <= {"fp16", "fp32"}


@pytest.mark.parametrize("name", matching("nvidia-(a|rtx-a|rtx-3)|amd-mi[12]\\d\\d|ascend-910"))
def test_ampere_cdna2_and_ascend_910_have_no_fp8(name: str):
    assert "fp8" not in DOCUMENTS[name]["peak"]


@pytest.mark.parametrize("name", SPARSE_BF16)
def test_peaks_are_dense(name: str):
    assert parse_flops(DOCUMENTS[name]["peak"]["bf16"]) <= 0.55 * SPARSE_BF16[name]


def test_h100_has_989_dense_tflops_and_450_gigabytes_a_second_each_way():
    chip = load_profile("nvidia-h100-80gb-sxm", None)
    assert chip.peak_flops_per_s["bf16"] == 989e12
    assert chip.intra_node is not None
    assert chip.intra_node.bandwidth_bytes_per_s == 450e9
    assert chip.reported_memory_bytes == 81559 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_measured_never_exceeds_claimed(name: str):
    document = DOCUMENTS[name]
    measured = document.get("measured", {})
    for precision, rate in measured.get("matmul", {}).items():
        if precision in document.get("peak", {}):
            assert parse_flops(rate) <= parse_flops(document["peak"][precision])
    if "memory_bandwidth" in measured and "memory_bandwidth" in document:
        assert parse_bandwidth(measured["memory_bandwidth"]) <= parse_bandwidth(document["memory_bandwidth"])
    if "allreduce" in measured:  # a bus bandwidth above the one-way link means that both directions were counted
        assert parse_bandwidth(measured["allreduce"]) <= parse_bandwidth(document["intra_node"]["bandwidth"])


@pytest.mark.parametrize("name", NAMES)
def test_reported_memory_lies_within_a_tenth_of_the_nominal(name: str):
    document = DOCUMENTS[name]
    if "reported_memory" in document:
        assert 0.9 < parse_bytes(document["reported_memory"]) / parse_bytes(document["memory"]) < 1.1


@pytest.mark.parametrize("name", [name for name in NAMES if trusted(DOCUMENTS[name])])
def test_unverified_peaks_lower_the_trust_to_medium_at_best(name: str):
    sources = DOCUMENTS[name]["sources"]
    unverified = [path for path, source in sources.items() if source.startswith("unverified")]
    assert "memory_bandwidth" not in unverified or DOCUMENTS[name]["trust"] == "medium"
    assert "peak.bf16" not in unverified or DOCUMENTS[name]["trust"] == "medium"


@pytest.mark.parametrize("name", NAMES)
def test_latencies_are_labelled_as_class_defaults(name: str):
    sources = DOCUMENTS[name]["sources"]
    assert all(source.startswith("class default") for path, source in sources.items() if path.endswith(".latency"))


def test_a_chip_without_a_credible_peak_ships_without_one():
    for name in ("metax-c550-64gb", "iluvatar-bi-v150-64gb", "moorethreads-mtt-s5000-80gb"):
        assert not load_profile(name, None).peak_flops_per_s


def test_one_mi250x_module_is_two_chips_to_software():
    module, die = (load_profile(name, None) for name in ("amd-mi250x-128gb", "amd-mi250x-gcd-64gb"))
    assert module.peak_flops_per_s["bf16"] == 2 * die.peak_flops_per_s["bf16"]
    assert module.memory_bytes is not None
    assert die.memory_bytes is not None
    assert module.memory_bytes == 2 * die.memory_bytes
    assert die.chips_per_node == 2 * (module.chips_per_node or 0)


def test_peaks_agree_with_the_reference_table():
    table = ROOT.parent / "shared" / "reference" / "groundtruth" / "hardware.csv"
    if not table.exists():
        pytest.skip(f"no reference table at {table}")
    with table.open(encoding="utf-8") as lines:
        rows = {row["chip"]: row for row in csv.DictReader(lines)}
    same = {
        "A100-SXM4-80GB": "nvidia-a100-80gb-sxm",
        "H100-SXM5-80GB": "nvidia-h100-80gb-sxm",
        "B200-SXM-180GB": "nvidia-b200-180gb-sxm",
        "L40S": "nvidia-l40s-48gb",
        "MI300X": "amd-mi300x-192gb",
        "Gaudi2": "intel-gaudi2-96gb",
        "TPU v5p": "google-tpu-v5p-95gb",
        "Trainium2": "aws-trainium2-96gb",
        "RTX 4090": "nvidia-rtx-4090-24gb",
    }
    for chip, name in same.items():
        row, document = rows[chip], DOCUMENTS[name]
        link = document["intra_node"]["bandwidth"]
        assert parse_flops(document["peak"]["bf16"]) == pytest.approx(float(row["bf16_dense_tflops"]) * 1e12)
        assert parse_bandwidth(document["memory_bandwidth"]) == pytest.approx(float(row["mem_bw_gbs"]) * 1e9)
        assert parse_bandwidth(link) == pytest.approx(float(row["intra_node_gbs"]) * 1e9)
