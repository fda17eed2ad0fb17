"""Model files: one source of layers, training with its defaults, constraints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import ModelSpec, load_model, parse_model
from tests.spec.written import model, problems


def refused(training: str = "", rest: str = "model: {preset: tiny}") -> list[str]:
    with pytest.raises(InputError) as caught:
        model(training, rest)
    return problems(caught.value)


def test_everything_but_the_model_the_sequence_length_and_the_batch_has_a_default():
    training = model().training
    assert training.model_dump() == {
        "sequence_length": 128,
        "global_batch": 8,
        "micro_batch_sizes": (1, 2, 4, 8),
        "precision": "bf16",
        "optimizer": "adamw",
        "master_weights": "fp32",
        "gradients": "fp32",
        "zero": 1,
        "recompute": ("none", "selective", "full"),
        "schedules": ("1f1b",),
        "sequence_parallel": True,
        "context_parallel": (1,),
        "expert_parallel": None,
        "attention": "flash",
        "loss": "plain",
        "dropout": None,
        "tokens": None,
    }


def test_a_batch_in_tokens_becomes_sequences():
    assert model("sequence_length: 4096\nglobal_batch: 8388608 tokens").training.global_batch == 2048
    assert model("global_batch: 4 sequences").training.global_batch == 4


def test_a_batch_in_tokens_holds_whole_sequences():
    assert refused("sequence_length: 4096\nglobal_batch: 8388600 tokens") == [
        "model.yaml:3:17: training.global_batch: '8388600 tokens' is no multiple of the sequence length; "
        "a batch has whole sequences of 4096 tokens; write '8388608 tokens'"
    ]


def test_a_batch_whose_sequence_length_is_wrong_is_not_blamed():
    assert len(refused("sequence_length: x\nglobal_batch: 100 tokens")) == 1


def test_tokens_to_train_on_are_read_with_their_scale():
    assert model("tokens: 15 T tokens").training.tokens == 15 * 10**12


def test_fp32_weights_are_their_own_masters():
    assert model("precision: fp32").training.master_weights == "none"
    assert model("precision: fp16").training.master_weights == "fp32"


def test_lists_of_degrees_are_sorted_and_have_no_repetitions():
    assert model("micro_batch_sizes: [4, 1]").training.micro_batch_sizes == (1, 4)
    assert "names '1' twice" in refused("context_parallel: [1, 1]")[0]


def test_a_micro_batch_size_without_effect_is_noticed_and_none_that_fits_is_refused():
    noticed = model("micro_batch_sizes: [2, 3]").notices
    assert [n.message for n in noticed] == ["micro-batch size 3 is not used: it does not divide the global batch of 8"]
    assert (
        "no micro-batch fits the global batch; the global batch has 8 sequences"
        in refused("micro_batch_sizes: [16]")[0]
    )
    assert model().notices == ()  # the default list is nobody's mistake


@pytest.mark.parametrize("name", ["interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v"])
def test_schedules_that_need_the_simulation_are_refused_by_name(name: str):
    assert (
        f"schedule '{name}' cannot be planned yet; it comes with the simulation" in refused(f"schedules: [{name}]")[0]
    )


def test_true_is_no_zero_level_and_yes_is_no_boolean():
    assert "training.zero: is true, not the ZeRO level" in refused("zero: true")[0]
    assert "'yes' is not true or false; write `true` or `false`" in refused("sequence_parallel: yes")[0]


def test_the_layers_come_from_exactly_one_place():
    assert "names no model; add `config: ./config.json`" in refused(rest="model: {}")[0]
    assert "has preset and dimensions" in refused(rest="model: {preset: x, dimensions: {hidden_size: 8}}")[0]
    assert "write `model: {preset: llama}`" in refused(rest="model: llama")[0]
    assert "write `model: {config: ./config.json}`" in refused(rest="model: ./config.json")[0]


def test_dimensions_and_presets_are_handed_on_as_written():
    found = model(rest="model: {dimensions: {hidden_size: 8, act: yes}}")
    assert (found.source, found.architecture) == ("dimensions", {"hidden_size": 8, "act": "yes"})
    assert model().architecture == {"preset": "tiny"}


def test_a_config_is_found_beside_the_model_file_or_in_its_folder(tmp_path: Path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"hidden_size": 8}')
    for place in ("llama/config.json", "./llama"):
        text = f"model: {{config: {place}}}\ntraining: {{sequence_length: 8, global_batch: 1}}"
        (tmp_path / "model.yaml").write_text(text)
        found = load_model(tmp_path / "model.yaml")
        assert (found.source, found.architecture) == ("config", {"hidden_size": 8})


def test_a_missing_config_is_reported_where_it_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.yaml").write_text("model: {config: confg.json}\ntraining: {sequence_length: 8, global_batch: 1}")
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "model.yaml")
    assert caught.value.render() == (
        f"{tmp_path}/model.yaml:1:17: model.config: {tmp_path}/confg.json: no such file; "
        f"did you mean '{tmp_path}/config.json'?"
    )


def test_a_broken_config_is_reported_at_its_own_place(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"a": 1,\n "a": 2}')
    (tmp_path / "model.yaml").write_text("model: {config: config.json}\ntraining: {}")
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "model.yaml")
    lines = problems(caught.value)
    assert len(lines) == 3  # two keys of training are missing
    assert lines[-1] == f"{tmp_path}/config.json:2:2: a: key 'a' is given twice; first on line 1; remove one of them"


def test_a_config_in_place_of_a_model_file_is_explained():
    with pytest.raises(InputError, match="is a model configuration, not a model file; write a model file with"):
        parse_model('{"model_type": "llama", "hidden_size": 8}', "config.json")


def test_constraints_pin_one_degree_or_a_choice_for_each_group():
    text = "constraints: {tensor_parallel: {a: 8, b: [2, 4]}, data_parallel: [1, 2], stages: {a: 3}, idle: [c]}"
    pinned = model(rest=f"model: {{preset: tiny}}\n{text}").constraints
    assert pinned.tensor_parallel == {"a": 8, "b": (2, 4)}
    assert (pinned.data_parallel, pinned.stages, pinned.idle) == ((1, 2), {"a": 3}, ("c",))
    one = model(rest="model: {preset: tiny}\nconstraints: {tensor_parallel: 4, data_parallel: 2}").constraints
    assert (one.tensor_parallel, one.data_parallel) == (4, 2)


def test_a_mistake_inside_a_constraint_is_placed_at_the_value():
    lines = refused(rest="model: {preset: tiny}\nconstraints:\n  tensor_parallel: {a: [1, x], b: 0}")
    assert [line.split(": ")[1] for line in lines] == [
        "constraints.tensor_parallel.a[1]",
        "constraints.tensor_parallel.b",
    ]


def test_every_mistake_of_a_file_is_reported_in_one_run():
    lines = refused("precision: bf17\nzero: 4\nloss: fussed", "modle: {preset: tiny}\nfrozen: [3]")
    assert [line.split(": ")[1] for line in lines] == [
        "training.precision",
        "training.zero",
        "training.loss",
        "modle",
        "frozen[0]",
    ]


def test_a_model_survives_the_plan_file():
    found = model(
        "tokens: 1 B tokens", "model: {preset: tiny}\nconstraints: {tensor_parallel: {a: [1, 2]}}\nfrozen: [norm]"
    )
    document = json.loads(json.dumps(found.model_dump(mode="json")))
    assert ModelSpec.model_validate(document) == found


def test_a_shipped_model_has_a_name_and_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-8b'"):
        load_model("lama-3.1-8b")
    assert load_model("llama-3.1-8b").training.sequence_length > 0
