"""Whatever stands in a configuration, it is read or refused, never a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from planner.errors import InputError
from planner.graph.presets import PRESETS

if TYPE_CHECKING:
    from tests.graph.conftest import GraphOf

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    10**9,
    10**40,
    1.5,
    "",
    "x",
    "layer",
    [],
    [1],
    [None],
    [[1]],
    [{}],
    {},
    {"a": 1},
]


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "deepseek-v3", "t5-small", "falcon-7b", "dbrx", "gemma-3-27b", "opt-350m"]
)
def test_junk_in_any_field_is_read_or_refused(name: str, graph_of: GraphOf) -> None:
    config = PRESETS[name]
    shallow = {
        key: 2 if key in ("num_hidden_layers", "num_layers", "n_layers") else value for key, value in config.items()
    }
    shallow.pop("layer_types", None)
    for field in [*shallow, "layer_types", "sliding_window", "text_config", "quantization_config", "head_dim", "dtype"]:
        for junk in JUNK:
            try:
                graph = graph_of({**shallow, field: junk})
            except InputError as error:
                assert error.problems[0].what
                assert len(error.render()) < 4000
            else:
                assert graph.parameters > 0
                assert all(layer.operations for layer in graph.layers)
