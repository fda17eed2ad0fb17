"""JSON Schemas: what they accept is what is read; every field explains itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.spec import CLUSTER_TEMPLATE, MODEL_TEMPLATE, parse_cluster, parse_model, schema_for, shipped_dir
from planner.spec.yaml_reader import parse_yaml, read_yaml
from tests.spec.written import CHIP


def wrong(kind: str, data: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema_for(kind))  # type: ignore[arg-type]
    return [error.message for error in validator.iter_errors(data)]


SHIPPED = [
    (kind, file)
    for kind, folder in (("cluster", "clusters"), ("model", "models"), ("profile", "profiles"))
    for file in sorted(shipped_dir(folder).glob("*.yaml"))  # type: ignore[arg-type]
]


@pytest.mark.parametrize("kind", ["cluster", "model", "profile"])
def test_a_schema_is_a_json_schema_with_a_description_for_every_field(kind: str):
    schema = schema_for(kind)  # type: ignore[arg-type]
    jsonschema.Draft202012Validator.check_schema(schema)
    for holder in (schema, *schema["$defs"].values()):
        for name, field in holder.get("properties", {}).items():
            assert field.get("description"), name


@pytest.mark.parametrize(("kind", "file"), SHIPPED, ids=lambda part: part if isinstance(part, str) else part.stem)
def test_every_shipped_file_keeps_to_its_schema(kind: str, file: Path):
    assert wrong(kind, read_yaml(file).data()) == []


def test_what_the_templates_show_keeps_to_the_schema_and_loads():
    assert wrong("cluster", parse_yaml(CLUSTER_TEMPLATE, "cluster.yaml").data()) == []
    assert wrong("model", parse_yaml(MODEL_TEMPLATE, "model.yaml").data()) == []


@pytest.mark.parametrize(
    "data",
    [
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 0}]},
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 1, "nod": 1}]},
        {"node_groups": [{"name": "a", "chip": "b"}]},
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 1}], "chips": {"b": {"memory": "80"}}},
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 1}], "chips": {"b": {"memory": 80}}},
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 1}], "links": [{"between": ["a"]}]},
        {"node_groups": [{"name": "a", "chip": "b", "nodes": 1}], "prices": {"b": "2 USD"}},
    ],
)
def test_an_editor_marks_what_reading_refuses(data: dict[str, Any]):
    assert wrong("cluster", data)


def test_an_editor_accepts_what_reading_accepts():
    text = f"""\
node_groups:
  - {{name: a, chip: acme, nodes: 2, nic: {{bandwidth: 50 Gbps}}, reserve: 0}}
  - {{name: b, chip: half, nodes: 2, reserve: 4 GiB}}
chips:
  acme: {CHIP}
  half: {{base: acme2, nic: {{bandwidth: 50 Gbps}}, memory: null}}
links: [{{between: [a, b], latency: 0}}]
"""
    assert wrong("cluster", parse_yaml(text, "lab.yaml").data()) == []
    text = """\
model: {graph: {nodes: [{name: a, parameters: 0, saved: 0, output: 1 MB, times: {c: {forward: 1 ms, backward: 0}}}]}}
training: {sequence_length: 8, global_batch: 16 tokens, tokens: 1 T tokens}
constraints: {tensor_parallel: {a: [1, 2], b: 4}, data_parallel: 2, micro_batch_size: 1}
"""
    assert wrong("model", parse_yaml(text, "model.yaml").data()) == []


def test_the_templates_describe_a_mixed_cluster_and_a_model():
    cluster = parse_cluster(CLUSTER_TEMPLATE, "cluster.yaml")
    assert sorted(cluster.chips) == ["nvidia-a100-80gb-sxm", "nvidia-h100-80gb-sxm"]
    assert cluster.num_chips == 48
    assert cluster.notices == ()
    assert parse_model(MODEL_TEMPLATE, "model.yaml").training.global_batch == 512


def test_what_the_templates_leave_commented_out_is_right_too():
    def uncommented(text: str) -> str:
        lines = []
        for line in text.splitlines():
            bare = line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line
            setting = bare.split("#")[0].strip().startswith(("-", "nvidia", "my-chip", "a100-half", "intra_node"))
            known = ("sites:", "links:", "prices:", "chips:", "chips_per_node:", "nic:", "reserve:", "constraints:")
            more = ("frozen:", "micro_batch_sizes:", "precision:", "optimizer:", "zero:", "recompute:", "schedules:")
            more += ("tokens:", "tensor_parallel:", "use:", "idle:", "nic_affinity:", "topology:")
            if not line.lstrip().startswith("# ") or setting or bare.strip().startswith(known + more):
                lines.append(bare)
        return "\n".join(lines)

    cluster = parse_cluster(uncommented(CLUSTER_TEMPLATE), "cluster.yaml")
    assert cluster.currency == "USD"
    assert cluster.node_groups[1].reserve_bytes == 4 * 2**30
    assert cluster.node_groups[1].nic_affinity is not None and cluster.topology is not None
    model = parse_model(uncommented(MODEL_TEMPLATE), "model.yaml")
    assert model.training.tokens == 15 * 10**12
    assert model.constraints.tensor_parallel == {"h100": 4, "a100": (2, 4)}
