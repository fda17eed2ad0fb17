"""Messages about a model's layers name the file that the wrong figure stands in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.graph import build_graph
from planner.spec import ModelSpec, load_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def written(folder: Path, source: str, config: dict[str, Any], rest: str = "") -> ModelSpec:
    """A model file in a folder, with bad.json beside it."""
    (folder / "bad.json").write_text(json.dumps(config), encoding="utf-8")
    file = folder / "model.yaml"
    file.write_text(f"model: {source}\ntraining: {{sequence_length: 128, global_batch: 8}}\n{rest}", encoding="utf-8")
    return load_model(file)


def refused(model: ModelSpec) -> list[str]:
    with pytest.raises(InputError) as caught:
        build_graph(model)
    return caught.value.render().splitlines()


def test_a_field_that_a_configuration_lacks_is_reported_with_the_configuration_s_file(tmp_path: Path):
    config = {key: value for key, value in CONFIG.items() if key != "num_attention_heads"}
    (line,) = refused(written(tmp_path, "{config: ./bad.json}", config))
    assert line.startswith(f"{tmp_path}/bad.json: config.num_attention_heads: is absent; ")


def test_an_unknown_architecture_is_reported_with_the_configuration_s_file(tmp_path: Path):
    (line,) = refused(written(tmp_path, "{config: bad.json}", {**CONFIG, "model_type": "lama"}))
    assert line.startswith(f"{tmp_path}/bad.json: config.model_type: the architecture 'lama' is not known")


def test_what_the_model_file_says_is_reported_with_the_model_file(tmp_path: Path):
    model = written(tmp_path, "{config: bad.json}", CONFIG, "frozen: [embeding]")
    assert refused(model)[0].startswith(f"{tmp_path}/model.yaml: frozen")
    fields = json.dumps({**CONFIG, "num_atention_heads": 4})
    lines = refused(written(tmp_path, f"{{dimensions: {fields}}}", CONFIG))
    assert lines[0].startswith(f"{tmp_path}/model.yaml: dimensions.num_atention_heads: is not a known field")


def test_a_sequence_beyond_the_learned_positions_is_reported_with_the_model_file(tmp_path: Path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 1000}
    (line,) = refused(written(tmp_path, "{config: bad.json}", config))
    assert line.startswith(f"{tmp_path}/model.yaml: training.sequence_length: is 128; ")


def test_where_a_model_was_read_is_not_part_of_what_it_is(tmp_path: Path):
    here = written(tmp_path, "{config: bad.json}", CONFIG)
    (tmp_path / "there").mkdir()
    there = written(tmp_path / "there", "{config: bad.json}", CONFIG)
    assert here == there
    assert not {"file", "config_file"} & set(here.model_dump())
