"""`dplan model`: what a model consists of."""

from __future__ import annotations

from planner.cli.options import DebugOption, JsonOption, ModelArgument

__all__ = ["model"]


def model(name: ModelArgument, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show a model: layers, parameters, FLOPs.

    Also what each layer keeps in memory from the forward to the backward pass, by recompute policy. Numbers are for one
    sequence of `training.sequence_length`, on one chip, before anything is divided.

    \b
    Examples:
      dplan model llama-3.1-8b
      dplan model model.yaml --json | jq .parameters
    """
    from planner.cli.output import print_json, print_report, warn
    from planner.graph import build_graph
    from planner.report.model import model_numbers, model_report
    from planner.spec import load_model

    spec = load_model(name)
    numbers = model_numbers(spec, build_graph(spec))
    warn(spec.notices)
    if json:
        print_json(numbers)
    else:
        print_report(model_report(numbers))
