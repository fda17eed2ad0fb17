"""The plain evaluator: what a placement costs and what it violates, straight from the definition."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.branching.problem import BranchingProblem, Placement

__all__ = ["SIZE_TOLERANCE", "Verdict", "evaluate"]

SIZE_TOLERANCE = 1e-9
"""Relative: sums of sizes in different orders differ in their last places."""


@dataclass(frozen=True)
class Verdict:
    """loads: (class, chip) -> time.  violations: one sentence each; empty for a valid placement."""

    loads: dict[tuple[int, int], float]
    violations: tuple[str, ...]

    @property
    def objective(self) -> float:
        """The largest load, 0 without layers."""
        return max(self.loads.values(), default=0.0)


def evaluate(problem: BranchingProblem, placement: Placement) -> Verdict:
    """Loads and violations of a placement."""
    held: dict[tuple[int, int], set[int]] = {}
    for layer, chip in enumerate(placement.chips):
        held.setdefault(chip, set()).add(layer)
    wrong = []
    if len(placement.chips) != problem.num_layers:
        wrong.append(f"{len(placement.chips)} of {problem.num_layers} layers are placed")
    for group in problem.together:
        if len({placement.chips[v] for v in group}) > 1:
            wrong.append(f"layers {group} are not on one chip")
    edges = problem.edges()
    loads = {}
    for (c, number), layers in sorted(held.items()):
        chips = problem.classes[c]
        if not 0 <= number < chips.count:
            wrong.append(f"class {c} has no chip {number}")
        size = sum(problem.sizes[v] for v in layers)
        if size > chips.size_limit * (1 + SIZE_TOLERANCE):
            wrong.append(f"chip {number} of class {c} holds {size:g} of at most {chips.size_limit:g}")
        for part in sorted({problem.parts[v] for v in layers}):
            if _comes_back(problem, edges, {v for v in layers if problem.parts[v] == part}, part):
                wrong.append(f"part {part} on chip {number} of class {c} is not contiguous")
        loads[c, number] = load_of(problem, c, layers)
        if loads[c, number] == float("inf"):
            wrong.append(f"a layer on chip {number} of class {c} cannot run there")
    return Verdict(loads, tuple(wrong))


def load_of(problem: BranchingProblem, c: int, layers: set[int]) -> float:
    """The load of a chip of class c that holds `layers`."""
    chips = problem.classes[c]
    busy = sum(chips.layer_times[v] for v in layers)
    for tensor, time in zip(problem.tensors, chips.transfer_times, strict=True):
        if tensor.source in layers:
            crosses = not layers.issuperset(tensor.consumers)
        else:
            crosses = not layers.isdisjoint(tensor.consumers)
        busy += time if crosses else 0.0
    return busy


def _comes_back(problem: BranchingProblem, edges: list[tuple[int, int]], held: set[int], part: int) -> bool:
    """Whether a path inside the part leaves the set and returns to it."""
    after: dict[int, list[int]] = {}
    for u, v in edges:
        if problem.parts[u] == part == problem.parts[v]:
            after.setdefault(u, []).append(v)
    waiting = [v for u in held for v in after.get(u, ()) if v not in held]
    outside = set(waiting)
    while waiting:
        for v in after.get(waiting.pop(), ()):
            if v in held:
                return True
            if v not in outside:
                outside.add(v)
                waiting.append(v)
    return False
