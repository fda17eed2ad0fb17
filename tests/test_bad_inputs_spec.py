"""Bad inputs of `dplan solve`: each gives its message at its place, exit code 2, no traceback and no plan file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from planner.cli.main import main

CLUSTER = """\
name: lab
node_groups:
  - {name: a, chip: mine, nodes: 2}
  - {name: b, chip: mine, nodes: 2}
chips:
  mine: {memory: 64 GiB, peak: {bf16: 200 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 8,
         intra_node: {bandwidth: 200 GB/s, latency: 3 us}, nic: {bandwidth: 100 Gbps, latency: 5 us}}
"""
MODEL = """\
model: {preset: llama-3.1-8b}
training:
  sequence_length: 4096
  global_batch: 64
"""


@dataclass(frozen=True)
class Bad:
    """One bad input: `was` in a good file becomes `now`, or the file has `text`, or the argument is another one."""

    rule: str
    place: str
    words: str
    was: str = ""
    now: str = ""
    text: str | bytes | None = None
    extra: dict[str, str] = field(default_factory=dict)
    num_messages: int = 1


CLUSTER_CASES = [
    Bad("no unit", "6:18: chips.mine.memory", "'64' has no unit; write '64 GB'", "64 GiB", "64"),
    Bad("half a unit", "6:18: chips.mine.memory", "unknown unit 'G'; it names no bytes", "64 GiB", "64 G"),
    Bad("bits of memory", "6:18: chips.mine.memory", "a small b means bits", "64 GiB", "64 Gb"),
    Bad("misspelt unit", "6:18: chips.mine.memory", "did you mean 'GiB'?", "64 GiB", "64 GiX"),
    Bad("float of bytes", "6:18: chips.mine.memory", "'80000000000' has no unit; write", "64 GiB", "8e10"),
    Bad("negative memory", "6:18: chips.mine.memory", "is negative", "64 GiB", "-64 GiB"),
    Bad("no memory", "6:18: chips.mine.memory", "is zero", "64 GiB", "0 GiB"),
    Bad("huge memory", "6:18: chips.mine.memory", "is absurdly large", "64 GiB", "64e9 GiB"),
    Bad("infinite memory", "6:18: chips.mine.memory", "is not a finite number", "64 GiB", ".inf"),
    Bad("memory that is no number", "6:18: chips.mine.memory", "is not a finite number", "64 GiB", ".nan"),
    Bad(
        "bits or bytes",
        "7:77: chips.mine.nic.bandwidth",
        "write '100 Gbps' (bits) or '100 GB/s'",
        "100 Gbps",
        "100 Gb/s",
    ),
    Bad("bandwidth as a number", "7:77: chips.mine.nic.bandwidth", "'1000000000' has no unit", "100 Gbps", "1e9"),
    Bad("latency in metres", "7:96: chips.mine.nic.latency", "write '5 min' or '5 ms'", "5 us", "5 m"),
    Bad(
        "a rate without its second",
        "6:39: chips.mine.peak.bf16",
        "did you mean '200 TFLOPS'?",
        "200 TFLOPS",
        "200 TFLOP",
    ),
    Bad("unknown precision", "6:33: chips.mine.peak.bf17", "did you mean 'bf16'?", "bf16", "bf17"),
    Bad(
        "negative nodes",
        "3:34: node_groups[0].nodes",
        "is too small",
        "nodes: 2}\n  - {name: b",
        "nodes: -2}\n  - {name: b",
    ),
    Bad("no nodes", "4:34: node_groups[1].nodes", "is too small", "nodes: 2}\nchips", "nodes: 0}\nchips"),
    Bad("half a node", "4:34: node_groups[1].nodes", "is not a whole number", "nodes: 2}\nchips", "nodes: 1.5}\nchips"),
    Bad("huge count", "4:34: node_groups[1].nodes", "is too large", "nodes: 2}\nchips", "nodes: 1e18}\nchips"),
    Bad(
        "yes for a number",
        "4:34: node_groups[1].nodes",
        "'yes' is not a number",
        "nodes: 2}\nchips",
        "nodes: yes}\nchips",
    ),
    Bad(
        "true for a number",
        "4:34: node_groups[1].nodes",
        "is true, not the number",
        "nodes: 2}\nchips",
        "nodes: true}\nchips",
    ),
    Bad("octal", "4:34: node_groups[1].nodes", "write 10", "nodes: 2}\nchips", "nodes: 010}\nchips"),
    Bad(
        "sexagesimal", "4:34: node_groups[1].nodes", "'1:30' is not a number", "nodes: 2}\nchips", "nodes: 1:30}\nchips"
    ),
    Bad("a number for a name", "1:7: name", "is the number 12; text is expected", "name: lab", "name: 12"),
    Bad(
        "unknown chip",
        "4:21: node_groups[1].chip",
        "unknown chip 'mime'; did you mean 'mine'?",
        "b, chip: mine",
        "b, chip: mime",
    ),
    Bad("misspelt key", "4:27: node_groups[1].node", "did you mean 'nodes'?", "nodes: 2}\nchips", "node: 2}\nchips"),
    Bad("missing key", "4:5: node_groups[1].nodes", "is missing; add `nodes: 4`", ", nodes: 2}\nchips", "}\nchips"),
    Bad("group named twice", "4:12: node_groups[1].name", "given twice; first on line 3", "name: b", "name: a"),
    Bad(
        "key given twice",
        "3:37: node_groups[0].nodes",
        "given twice; first on line 3",
        "nodes: 2}\n  -",
        "nodes: 2, nodes: 2}\n  -",
    ),
    Bad("empty cluster", "2:14: node_groups", "at least one node group is needed", text="name: lab\nnode_groups: []\n"),
    Bad("no groups", "1:1: node_groups", "is missing", text="name: lab\n"),
    Bad("groups as text", "2:14: node_groups", "is not a list", text="name: lab\nnode_groups: a100\n"),
    Bad(
        "self-link",
        "5:19: links[0].between",
        "joins 'a' with itself",
        "chips:",
        "links: [{between: [a, a], latency: 0}]\nchips:",
    ),
    Bad(
        "link to nobody",
        "5:23: links[0].between[1]",
        "unknown node group 'c'",
        "chips:",
        "links: [{between: [a, c]}]\nchips:",
    ),
    Bad("link with one end", "5:19: links[0].between", "joins 1, not two", "chips:", "links: [{between: [a]}]\nchips:"),
    Bad(
        "link twice",
        "7:13: links[1].between",
        "a second time; first on line 6",
        "chips:",
        "links:\n- {between: [a, b]}\n- {between: [b, a]}\nchips:",
    ),
    Bad(
        "unknown transport",
        "5:38: links[0].transport",
        "did you mean 'rdma'?",
        "chips:",
        "links: [{between: [a, b], transport: rmda}]\nchips:",
    ),
    Bad(
        "two sites without a link",
        "4:43: node_groups[1].site",
        "a local network would be a guess",
        "b, chip: mine, nodes: 2",
        "b, chip: mine, nodes: 2, site: far",
    ),
    Bad(
        "link of an unknown site",
        "5:28: sites.links[0].between[0]",
        "unknown site 'here'",
        "chips:",
        "sites: {links: [{between: [here, site]}]}\nchips:",
    ),
    Bad(
        "price of an unknown chip",
        "5:10: prices.thine",
        "did you mean 'mine'?",
        "chips:",
        "prices: {thine: 1 USD/h}\nchips:",
    ),
    Bad("price without a currency", "5:16: prices.mine", "write '1.8 USD/h'", "chips:", "prices: {mine: 1.8}\nchips:"),
    Bad("reserve without a unit", "5:10: reserve", "write a share like '6 %'", "chips:", "reserve: 6\nchips:"),
    Bad("reserve of everything", "5:10: reserve", "leaves nothing to use", "chips:", "reserve: 100 %\nchips:"),
    Bad("a tab", "3:1", "a tab stands where YAML wants spaces", "  - {name: a", "\t- {name: a"),
    Bad("broken YAML", "7:10", "is not valid YAML", "8,\n", "8}\n"),
    Bad(
        "alias bomb",
        "6:8: f",
        "with aliases written out",
        text="".join(
            [f"{c}: &{c} [{', '.join(['x' if c == 'a' else '*' + chr(ord(c) - 1)] * 9)}]\n" for c in "abcdefghij"]
        ),
    ),
    Bad("deep nesting", "1:67", "is nested too deeply", text="a: " + "[" * 1000),
    Bad("code in a tag", "1:4", "is not read; files hold plain values", text="a: !!python/object/apply:os.system [ls]"),
    Bad("two documents", "8:1", "a second document starts here", text=CLUSTER + "---\nname: other\n"),
    Bad("binary junk", "1:1", "is not UTF-8", text=bytes(range(128, 256))),
    Bad("another encoding", "", "is written in UTF-16", text=CLUSTER.encode("utf-16")),
    Bad("empty file", "", "is empty; `dplan init` writes files", text=""),
    Bad("a list", "1:1", "holds a list; a file is a mapping", text="- a\n"),
]
MODEL_CASES = [
    Bad("batch of half a sequence", "4:17: training.global_batch", "write '4096 tokens'", "64", "5000 tokens"),
    Bad("batch of bananas", "4:17: training.global_batch", "unknown unit 'bananas'", "64", "64 bananas"),
    Bad("no sequence", "3:20: training.sequence_length", "is too small", "4096", "0"),
    Bad(
        "unknown precision of training",
        "5:14: training.precision",
        "did you mean 'bf16'?",
        "64\n",
        "64\n  precision: bf61\n",
    ),
    Bad("unknown optimizer", "5:14: training.optimizer", "did you mean 'adamw'?", "64\n", "64\n  optimizer: adam\n"),
    Bad("ZeRO level 4", "5:9: training.zero", "is too large", "64\n", "64\n  zero: 4\n"),
    Bad(
        "schedule that comes later",
        "5:15: training.schedules[0]",
        "it comes with the simulation",
        "64\n",
        "64\n  schedules: [zb_v]\n",
    ),
    Bad(
        "number in place of a list",
        "5:22: training.micro_batch_sizes",
        "write `[4]`",
        "64\n",
        "64\n  micro_batch_sizes: 4\n",
    ),
    Bad(
        "yes for true",
        "5:22: training.sequence_parallel",
        "write `true` or `false`",
        "64\n",
        "64\n  sequence_parallel: yes\n",
    ),
    Bad("no training", "1:1: training", "is missing", text="model: {preset: llama-3.1-8b}\n"),
    Bad("two sources of layers", "1:8: model", "has preset and dimensions", "8b}", "8b, dimensions: {hidden_size: 8}}"),
    Bad("no source of layers", "1:8: model", "names no model", "preset: llama-3.1-8b", ""),
    Bad("missing config", "1:17: model.config", "no such file", "preset: llama-3.1-8b", "config: nowhere.json"),
    Bad(
        "config with a key twice",
        "model-config.json:1:10: a",
        "given twice",
        "preset: llama-3.1-8b",
        "config: model-config.json",
        extra={"model-config.json": '{"a": 1, "a": 2}'},
    ),
    Bad(
        "config that is too deep",
        "model-config.json:1:70",
        "is nested too deeply",
        "preset: llama-3.1-8b",
        "config: model-config.json",
        extra={"model-config.json": '{"a": ' + "[" * 100_000},
    ),
    Bad(
        "cyclic graph",
        "9:5: model.graph.edges[1]",
        "closes a cycle: a -> b -> a",
        text="""\
model:
 graph:
  nodes:
  - {name: a, parameters: 1, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
  - {name: b, parameters: 1, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
  edges:
  -
    {source: a, target: b}
  - {source: b, target: a}
training: {sequence_length: 8, global_batch: 8}
""",
    ),
    Bad(
        "graph with work as a rate",
        "2:60: model.graph.nodes[0].forward_flops",
        "it is a rate",
        text="""\
model:
 graph: {nodes: [{name: a, parameters: 1, forward_flops:   1 TFLOPS, saved: 0, output: 0}]}
training: {sequence_length: 8, global_batch: 8}
""",
    ),
]


def solve(capsys: pytest.CaptureFixture[str], cluster: str, model: str) -> tuple[int, str, str]:
    before, sys.argv = sys.argv, ["dplan", "solve", cluster, model, "-o", "plan.json"]
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, captured.out, captured.err


def write(bad: Bad, good: str, file: str) -> None:
    for name, text in bad.extra.items():
        Path(name).write_text(text)
    if bad.text is None:
        assert good.count(bad.was) == 1, "a case changes one place"
    content = good.replace(bad.was, bad.now) if bad.text is None else bad.text
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    ("file", "bad"),
    [("cluster.yaml", bad) for bad in CLUSTER_CASES] + [("model.yaml", bad) for bad in MODEL_CASES],
    ids=[bad.rule for bad in CLUSTER_CASES + MODEL_CASES],
)
def test_a_bad_input_gives_one_clear_message_and_exit_code_2(
    file: str, bad: Bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER)
    Path("model.yaml").write_text(MODEL)
    write(bad, CLUSTER if file == "cluster.yaml" else MODEL, file)

    code, out, err = solve(capsys, "cluster.yaml", "model.yaml")

    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len(err.splitlines()) == bad.num_messages
    where = bad.place if bad.extra and ".json" in bad.place else f"{file}:{bad.place}" if bad.place else file
    assert err.startswith(f"{where}: ")
    assert bad.words in err
    assert not Path("plan.json").exists()


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("nowhere.yaml", "nowhere.yaml: no such file; check the path of the cluster file"),
        ("clustr.yaml", "clustr.yaml: no such file; did you mean 'cluster.yaml'?"),
        ("./", "is a directory; name the cluster file itself"),
        ("one-node-h10", "no shipped cluster has the name 'one-node-h10'"),
        ("a\0b.yaml", "cannot be read"),
    ],
)
def test_an_argument_that_is_no_readable_file_gives_one_clear_message_and_exit_code_2(
    cluster: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER)
    Path("model.yaml").write_text(MODEL)
    code, out, err = solve(capsys, cluster, "model.yaml")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_mistakes_of_both_files_are_reported_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(CLUSTER.replace("64 GiB", "64").replace("name: b", "name: a"))
    Path("model.yaml").write_text(MODEL.replace("4096", "-1").replace("64", "x"))
    code, _, err = solve(capsys, "cluster.yaml", "model.yaml")
    assert code == 2
    assert [line.split(": ")[0] for line in err.splitlines()] == [
        "cluster.yaml:4:12",
        "cluster.yaml:6:18",
        "model.yaml:3:20",
        "model.yaml:4:17",
    ]


def test_at_least_sixty_bad_inputs_are_tried():
    assert len(CLUSTER_CASES) + len(MODEL_CASES) >= 60
