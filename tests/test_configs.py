"""The shipped clusters and models: each loads, and each is what its first line says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.spec import load_cluster, load_model

ROOT = Path(__file__).parents[1]
CLUSTERS = sorted((ROOT / "configs" / "clusters").glob("*.yaml"))
MODELS = sorted((ROOT / "configs" / "models").glob("*.yaml"))
CHIPS = {  # cluster -> chips per node group, in the file's order
    "one-node-h100": [8],
    "h100-64": [64],
    "a100-v100": [8, 16],
    "mixed-lab": [16, 32],
    "h100-a100-l40s": [16, 32, 32],
    "mi300x-h100": [32, 32],
    "ascend-a100": [64, 32],
    "rtx-3090-4090": [8, 8],
    "three-sites": [32, 32, 32],
    "h2-1024-reconstructed": [256, 256, 256, 256],
    "h100-a100-4096": [2048, 2048],
    "memory-tight": [16, 16],
    "five-chips-one-server": [2, 1, 2],
    "two-three-three": [2, 6],
    "a100-40gb-80": [80],
}
TOKENS_PER_S = {"a": 136.9, "b": 143.7, "c": 46.2, "d": 99.5}


def documents(files: list[Path]) -> dict[str, dict[str, Any]]:
    return {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in files}


def test_at_least_12_clusters_and_14_models_are_shipped():
    assert len(CLUSTERS) >= 12
    assert len(MODELS) >= 14


@pytest.mark.parametrize("file", CLUSTERS + MODELS, ids=lambda file: file.stem)
def test_every_file_says_on_top_what_it_is_and_is_named_after_its_content(file: Path):
    text = file.read_text("utf-8")
    assert text.startswith("# ")
    assert yaml.safe_load(text)["name"] == file.stem


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda file: file.stem)
def test_every_cluster_loads_by_path_and_by_name(file: Path):
    cluster = load_cluster(file)
    assert cluster == load_cluster(file.stem)
    assert cluster.name == file.stem
    assert type(cluster).model_validate(cluster.model_dump(mode="json")) == cluster


@pytest.mark.parametrize("file", MODELS, ids=lambda file: file.stem)
def test_every_model_loads_by_path_and_by_name(file: Path):
    model = load_model(file)
    assert model == load_model(file.stem)
    assert model.name == file.stem
    assert model.training.global_batch >= max(model.training.micro_batch_sizes)


@pytest.mark.parametrize("name", CHIPS)
def test_node_groups_have_the_chips_that_the_first_line_promises(name: str):
    cluster = load_cluster(name)
    assert [group.nodes * group.chips_per_node for group in cluster.node_groups] == CHIPS[name]
    assert cluster.num_chips == sum(CHIPS[name])


def test_the_reconstructed_cluster_calls_every_figure_reconstructed():
    chips = documents(CLUSTERS)["h2-1024-reconstructed"]["chips"]
    assert len(chips) == 4
    for chip in chips.values():
        assert chip["trust"] == "reconstructed"
        assert all(source.startswith("reconstructed") for source in chip["sources"].values())
        figures = {"memory", "memory_bandwidth", "chips_per_node", "peak.bf16", "peak.fp16"}
        figures |= {f"{link}.{part}" for link in ("intra_node", "nic") for part in ("bandwidth", "latency")}
        assert set(chip["sources"]) == figures


def test_the_reconstructed_peaks_follow_from_the_stated_arithmetic():
    layers, hidden, kv, ffn, vocabulary, sequence = 96, 8192, 8 * 128, 36864, 103168, 4096
    weights = layers * (2 * hidden**2 + 2 * hidden * kv + 3 * hidden * ffn) + vocabulary * hidden
    per_token = 6 * weights + 12 * layers * hidden * sequence
    chips = load_cluster("h2-1024-reconstructed").chips
    for letter, tokens_per_s in TOKENS_PER_S.items():
        peak = chips[f"h2-chip-{letter}"].peak_flops_per_s["bf16"]
        assert peak == pytest.approx(tokens_per_s * per_token / 0.40, rel=1e-3)


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda file: file.stem)
def test_prices_are_called_examples(file: Path):
    text = file.read_text("utf-8")
    assert ("prices:" in text) == bool(re.search("example prices?, not (a )?quotations?", text))


def test_small_chips_stand_first_in_the_memory_tight_cluster():
    cluster = load_cluster("memory-tight")
    small, large = (cluster.chip_of(index) for index in range(2))
    assert small.peak_flops_per_s == large.peak_flops_per_s
    assert small.memory_bytes is not None
    assert large.memory_bytes == 2 * small.memory_bytes


def test_models_come_from_presets_a_config_file_dimensions_and_a_graph():
    assert {load_model(file).source for file in MODELS} == {"preset", "config", "dimensions", "graph"}


def test_the_config_beside_a_model_equals_the_published_one():
    reference = ROOT.parent / "shared" / "reference" / "models.json"
    if not reference.exists():
        pytest.skip(f"no reference at {reference}")
    published = {model["name"]: model["config"] for model in json.loads(reference.read_text("utf-8"))}
    ours = json.loads((ROOT / "configs" / "models" / "llama-3.1-8b-config.json").read_text("utf-8"))
    assert ours == published["Llama-3.1-8B"]


def test_h2_has_eight_million_tokens_a_batch():
    training = load_model("h2-100b").training
    assert training.global_batch * training.sequence_length == 8388608
