"""Chips: shipped, beside the user's files, inline, changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import load_cluster, load_profile, profile_names
from tests.spec.written import CHIP, cluster, problems

A100 = "nvidia-a100-80gb-sxm"
ONE = "{name: a, chip: half, nodes: 2}"


def refused(groups: str, **chips: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        cluster(groups, **chips)
    return problems(caught.value)


def test_a_new_chip_is_the_users_own_word():
    chip = cluster("{name: a, chip: acme, nodes: 1}").chip_of(0)
    assert chip.trust == "user"
    assert chip.peak_flops_per_s == {"bf16": 200e12}


def test_a_chip_built_on_a_profile_inherits_what_it_does_not_say():
    base = load_profile(A100)
    chip = cluster(ONE, half=f"{{base: {A100}, memory: 40 GiB}}").chip_of(0)
    assert chip.memory_bytes == chip.capacity_bytes == 40 * 2**30
    assert chip.peak_flops_per_s == base.peak_flops_per_s
    assert (chip.vendor, chip.trust, chip.name) == (base.vendor, base.trust, "half")


def test_a_part_of_a_link_can_be_changed_alone():
    base = load_profile(A100)
    chip = cluster(ONE, half=f"{{base: {A100}, nic: {{bandwidth: 50 Gbps}}}}").chip_of(0)
    assert chip.nic is not None
    assert base.nic is not None
    assert chip.nic.bandwidth_bytes_per_s == 50e9 / 8
    assert chip.nic.latency_s == base.nic.latency_s


def test_a_changed_figure_loses_the_source_of_the_profile_and_the_others_keep_theirs():
    base = load_profile(A100)
    chip = cluster(ONE, half=f"{{base: {A100}, memory: 40 GiB, nic: {{bandwidth: 50 Gbps}}}}").chip_of(0)
    assert chip.sources["memory"] == chip.sources["nic.bandwidth"] == "changed in the cluster file"
    assert chip.sources["peak.bf16"] == base.sources["peak.bf16"]


def test_a_changed_claim_takes_what_was_reported_or_measured_of_it_away():
    base = load_profile(A100)
    assert base.reported_memory_bytes is not None
    assert base.measured is not None
    assert "bf16" in base.measured.matmul_flops_per_s
    chip = cluster(ONE, half=f"{{base: {A100}, memory: 40 GiB, peak: {{bf16: 150 TFLOPS}}}}").chip_of(0)
    assert chip.reported_memory_bytes is None
    assert chip.measured is not None
    assert "bf16" not in chip.measured.matmul_flops_per_s
    assert chip.measured.allreduce_bytes_per_s == base.measured.allreduce_bytes_per_s
    assert "measured.matmul.bf16" in base.sources
    assert not {"reported_memory", "measured.matmul.bf16"} & set(chip.sources)


def test_an_entry_with_the_name_of_a_profile_changes_that_profile():
    chip = cluster(f"{{name: a, chip: {A100}, nodes: 2}}", **{A100.replace("-", "_"): "{chips_per_node: 4}"}).chip_of(0)
    assert chip.chips_per_node == 4
    assert chip.peak_flops_per_s["bf16"] == 312e12


def test_an_unknown_base_is_refused_with_the_nearest_name():
    assert refused(ONE, half="{base: nvidia-a100-80gb-sx}")[0].startswith(
        "lab.yaml:6:16: chips.half.base: unknown profile 'nvidia-a100-80gb-sx'; did you mean 'nvidia-a100-80gb-sxm'?"
    )


def test_a_new_link_needs_both_figures():
    assert refused(ONE, half="{memory: 4 GiB, nic: {bandwidth: 1 Gbps}}") == [
        "lab.yaml:6:30: chips.half.nic.latency: is missing; add `latency: 3 us`"
    ]


def test_an_unknown_chip_is_refused_with_the_nearest_name():
    line = refused("{name: a, chip: nvidia-h100-80gb-sxn, nodes: 1}")[0]
    assert "unknown chip 'nvidia-h100-80gb-sxn'; did you mean 'nvidia-h100-80gb-sxm'? `dplan chips` lists" in line


def test_a_shortened_name_is_answered_with_every_profile_that_holds_it():
    def advice(name: str) -> str:
        return refused(f"{{name: a, chip: {name}, nodes: 1}}")[0].split("; ", 1)[1]

    h100 = [name for name in profile_names() if "h100" in name]
    assert len(h100) > 1
    for word in ("nvidia-h100", "h100", "H100"):
        assert advice(word).startswith(f"did you mean one of {', '.join(map(repr, h100[:6]))}? `dplan chips`")
    assert "'nvidia-a100-40gb-sxm', 'nvidia-a100-80gb-sxm'" in advice("a100-sxm")
    assert "'nvidia-v100-32gb-sxm'" in advice("v100")
    assert advice("nvidia").count("'") == 12
    assert not advice("a").startswith("did you mean")


def test_nothing_measured_runs_above_its_claimed_peak():
    wrong = CHIP.replace("vendor", "measured: {matmul: {bf16: 250 TFLOPS}, memory_bandwidth: 2 TB/s}, vendor")
    lines = refused("{name: a, chip: b, nodes: 1}", b=wrong)
    assert len(lines) == 2
    assert "chips.b.measured.matmul.bf16: 250.0 TFLOPS was measured, 200.0 TFLOPS is claimed" in lines[0]
    assert "chips.b.measured.memory_bandwidth: 2.0 TB/s was measured, 1.0 TB/s is claimed" in lines[1]


def test_a_driver_does_not_report_more_memory_than_was_sold():
    wrong = CHIP.replace("memory: 64 GiB", "memory: 64 GiB, reported_memory: 80 GiB")
    assert "80.0 GiB is reported, 64.0 GiB was sold" in refused("{name: a, chip: b, nodes: 1}", b=wrong)[0]


def test_a_source_names_a_figure():
    wrong = CHIP.replace("vendor", "sources: {peak.bf17: x, memry: y, peak.bf16: fine}, vendor")
    lines = refused("{name: a, chip: b, nodes: 1}", b=wrong)
    assert "unknown figure 'peak.bf17'; did you mean 'peak.bf16'?" in lines[0]
    assert "unknown figure 'memry'; did you mean 'memory'?" in lines[1]


PROFILE = "memory: 16 GiB\npeak: {fp16: 50 TFLOPS}\nchips_per_node: 1\nnic: {bandwidth: 10 Gbps, latency: 20 us}\n"


@pytest.mark.parametrize("folder", ["profiles", "."])
def test_a_profile_file_beside_the_cluster_file_is_found(tmp_path: Path, folder: str):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "my-card.yaml").write_text(PROFILE)
    (tmp_path / "lab.yaml").write_text("node_groups: [{name: a, chip: my-card, nodes: 3}]")
    found = load_cluster(tmp_path / "lab.yaml")
    assert found.chip_of(0).memory_bytes == 16 * 2**30
    assert load_profile("my-card", near=tmp_path) == found.chip_of(0)


@pytest.mark.parametrize("other", ["model: {preset: llama-3.1-8b}\ntraining: {}\n", None])
def test_a_cluster_or_a_model_with_the_name_of_a_chip_is_no_profile(tmp_path: Path, other: str | None):
    text = f"name: lab\nnode_groups: [{{name: a, chip: acme, nodes: 1}}]\nchips: {{acme: {CHIP}}}\n"
    file = tmp_path / ("acme.yaml" if other is None else "lab.yaml")
    file.write_text(text)
    if other is not None:
        (tmp_path / "acme.yaml").write_text(other)
    assert load_cluster(file).chip_of(0).peak_flops_per_s == {"bf16": 200e12}


def test_a_users_profile_stands_in_for_a_shipped_one_and_says_so(tmp_path: Path):
    (tmp_path / f"{A100}.yaml").write_text(PROFILE)
    (tmp_path / "lab.yaml").write_text(f"node_groups: [{{name: a, chip: {A100}, nodes: 3}}]")
    found = load_cluster(tmp_path / "lab.yaml")
    assert found.chip_of(0).memory_bytes == 16 * 2**30
    assert found.notices[0].code == "profile"


def test_a_mistake_in_a_profile_file_is_reported_there_once(tmp_path: Path):
    (tmp_path / "my-card.yaml").write_text("memory: 16 G\n")
    groups = "[{name: a, chip: my-card, nodes: 3}, {name: b, chip: my-card, nodes: x}]"
    (tmp_path / "lab.yaml").write_text(f"node_groups: {groups}")
    with pytest.raises(InputError) as caught:
        load_cluster(tmp_path / "lab.yaml")
    places = [line.split(": ")[0] for line in problems(caught.value)]
    assert places == [f"{tmp_path}/lab.yaml:1:83", f"{tmp_path}/my-card.yaml:1:9"]


def test_a_profile_is_named_after_its_file(tmp_path: Path):
    (tmp_path / "my-card.yaml").write_text("name: your-card\n" + PROFILE)
    with pytest.raises(InputError, match=r"name: is 'your-card'; the file is my-card\.yaml"):
        load_profile(str(tmp_path / "my-card.yaml"))


def test_a_chip_name_cannot_leave_its_folder():
    with pytest.raises(InputError, match="unknown chip"):
        load_profile("../configs/clusters/mixed-lab")
    assert "is no name" in refused("{name: a, chip: ../secret, nodes: 1}")[0]


def test_every_shipped_profile_loads_and_survives_the_plan_file():
    for name in profile_names():
        chip = load_profile(name)
        assert chip.name == name
        assert type(chip).model_validate(chip.model_dump(mode="json")) == chip


def test_every_figure_of_a_shipped_profile_has_a_source_and_every_profile_says_how_far_to_trust_it():
    for name in profile_names():
        chip = load_profile(name)
        written = chip.model_dump(by_alias=True, exclude_none=True)
        figures = ["memory", "reported_memory", "memory_bandwidth", "chips_per_node", "host_staging"]
        paths = [figure for figure in figures if figure in written]
        for holder in ("peak", "intra_node", "nic", "measured", "efficiency"):
            paths += [f"{holder}.{part}" for part, value in written.get(holder, {}).items() if value]
        sourced = set(chip.sources)
        unsourced = [
            p for p in paths if not any(p == s or p.startswith(s + ".") or s.startswith(p + ".") for s in sourced)
        ]
        assert not unsourced, name
        assert "trust" in chip.model_fields_set, name
