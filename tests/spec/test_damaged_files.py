"""A good file with any part of it replaced by anything is read, or refused as bad input: never another exception."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.spec import parse_cluster, parse_model
from planner.spec.yaml_reader import parse_yaml
from tests.spec.written import CHIP

CLUSTER = parse_yaml(
    f"""\
name: lab
node_groups:
  - {{name: a, chip: acme, nodes: 2, site: east, reserve: 4 GiB, nic: {{bandwidth: 50 Gbps}}}}
  - {{name: b, chip: half, nodes: 2, site: west, chips_per_node: 4}}
links: [{{between: [a, b], bandwidth: 100 Gbps, latency: 10 us, transport: host, staging: 8 GB/s}}]
sites: {{links: [{{between: [east, west], total: 10 Gbps}}], latency: 20 ms}}
chips:
  acme: {CHIP}
  half: {{base: nvidia-a100-80gb-sxm, memory: 40 GiB, sources: {{memory: me}}, efficiency: {{matmul: 50 %}}}}
prices: {{acme: 1 USD/h, half: 2 USD/h}}
reserve: 6 %
""",
    "lab.yaml",
).data()
MODEL = parse_yaml(
    """\
name: tiny
model:
  graph:
    nodes:
      - {name: a, parameters: 1, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB,
         times: {x: {forward: 1 s, backward: 1 s}}}
      - {name: b, parameters: 1, forward_flops: 0, saved: 0, output: 0, moved: 1 kB, transient: 1 B, kind: k}
    edges: [{source: a, target: b, bytes: 1 MB}]
training:
  {sequence_length: 8, global_batch: 64 tokens, micro_batch_sizes: [1, 2], precision: fp16, recompute: [none],
   schedules: [gpipe], tokens: 1 T tokens, zero: 2, dropout: false}
constraints: {tensor_parallel: {a: [1, 2], b: 4}, data_parallel: [1], stages: {a: 1}, order: [a], layers_per_stage: [1]}
frozen: [a]
""",
    "model.yaml",
).data()

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["a", "b", "acme", "", "80", "5 GB", "1e9", "yes", "[key]", "~one", "1 USD/h", "6 %", "\x1b[0m"])
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value below the top."""
    steps = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else []
    return [place for step in steps for place in ((*path, step), *places(data[step], (*path, step)))]


def damaged(data: Any, place: tuple[Any, ...], junk: Any, key: str | None) -> str:
    data = copy.deepcopy(data)
    holder = data
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = junk
    if key is not None and isinstance(holder, dict):
        holder[key] = holder.pop(place[-1])
    return json.dumps(data)


_HOW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
_KEYS = st.none() | st.text(max_size=6)


@_HOW
@given(st.sampled_from(places(CLUSTER)), _ANYTHING, _KEYS)
def test_a_damaged_cluster_file_is_read_or_refused(place: tuple[Any, ...], junk: Any, key: str | None):
    try:
        cluster = parse_cluster(damaged(CLUSTER, place, junk, key), "lab.json")
    except InputError as error:
        assert error.render()
        return
    assert type(cluster).model_validate(cluster.model_dump(mode="json")) == cluster
    for a in range(len(cluster.node_groups)):
        for b in range(len(cluster.node_groups)):
            if a != b or cluster.node_groups[a].nodes > 1:
                assert cluster.path(a, b).bandwidth_bytes_per_s > 0


@_HOW
@given(st.sampled_from(places(MODEL)), _ANYTHING, _KEYS)
def test_a_damaged_model_file_is_read_or_refused(place: tuple[Any, ...], junk: Any, key: str | None):
    try:
        model = parse_model(damaged(MODEL, place, junk, key), "model.json")
    except InputError as error:
        assert error.render()
        return
    assert type(model).model_validate(model.model_dump(mode="json")) == model


@_HOW
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str):
    for parse in (parse_cluster, parse_model):
        try:
            parse(text, "any.yaml")
        except InputError as error:
            assert error.exit_code == 2
