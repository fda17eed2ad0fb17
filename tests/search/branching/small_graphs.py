"""Small random branching graphs, and the optimum over every contiguous assignment by exhaustion.

The enumeration is written from the definition and shares nothing with the search.
"""

from __future__ import annotations

import math
import random
from functools import cache
from itertools import combinations

from planner.search.branching import BranchingProblem, ChipClass, Tensor


def random_graph(seed: int) -> BranchingProblem:
    """At most 9 layers on at most 4 chips of 1 to 3 classes; colocation, backward layers and tight sizes in some."""
    r = random.Random(seed)
    n = r.randint(2, 9)
    forward = n if r.random() < 0.5 else r.randint((n + 1) // 2, n)
    parts = tuple(int(v >= forward) for v in range(n))
    density = r.choice([0.15, 0.3, 0.5])
    consumers = [[v for v in range(u + 1, n) if r.random() < density] for u in range(n)]
    if r.random() < 0.5:  # one tensor a layer
        tensors = [Tensor(u, tuple(after)) for u, after in enumerate(consumers) if after]
    else:  # one tensor an edge
        tensors = [Tensor(u, (v,)) for u, after in enumerate(consumers) for v in after]
    together = []
    if forward < n and r.random() < 0.8:
        together = [(v - forward, v) for v in range(forward, n) if v - forward < forward]
    elif r.random() < 0.3:
        together = [tuple(sorted(r.sample(range(n), 2)))]
    sizes = tuple(float(r.choice([0, 1, 2, 3, 5])) for _ in range(n))
    counts = r.choice([(2,), (3,), (4,), (1, 1), (2, 1), (3, 1), (2, 2), (1, 1, 1), (2, 1, 1)])
    tight = r.random() < 0.5
    slow = r.choice([0.0, 0.3, 3.0])
    times = [r.choice([0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0]) for _ in range(n)]
    costs = [r.choice([0.0, 0.1, 0.5, 1.0, 2.0]) * slow for _ in tensors]
    classes = []
    for c, count in enumerate(counts):
        factor = r.choice([1.0, 1.5, 4.0]) if c else 1.0
        limit = float(round(sum(sizes) * r.uniform(0.2, 0.8))) if tight else math.inf
        own = tuple(math.inf if c and r.random() < 0.1 else t * factor * r.choice([1.0, 1.0, 1.25]) for t in times)
        pays = 0.0 if c and r.random() < 0.4 else r.choice([1.0, 0.5])
        classes.append(ChipClass(count, own, tuple(pays * x for x in costs), limit))
    return BranchingProblem(sizes, parts, tuple(tensors), tuple(classes), tuple(together))


def optimum_by_exhaustion(problem: BranchingProblem) -> float:
    """The least largest load over all contiguous assignments; inf where none is allowed.

    The chips are filled one after the other, each with every allowed subset of what is left.
    """
    n = problem.num_layers
    whole = (1 << n) - 1
    allowed = [_is_allowed(problem, mask) for mask in range(whole + 1)]
    chips = [c for c, own in enumerate(problem.classes) for _ in range(own.count)]
    loads = [[_load(problem, c, mask) for mask in range(whole + 1)] for c in range(len(problem.classes))]

    @cache
    def best(chip: int, left: int) -> float:
        if chip == len(chips):
            return 0.0 if not left else math.inf
        found, held = best(chip + 1, left), left
        while held:
            if allowed[held]:
                found = min(found, max(loads[chips[chip]][held], best(chip + 1, left & ~held)))
            held = (held - 1) & left
        return found

    return best(0, whole)


def _members(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]


def _is_allowed(problem: BranchingProblem, mask: int) -> bool:
    """Colocation classes whole or absent; the layers of each part convex."""
    own = set(_members(mask))
    if any(own & set(group) and not own >= set(group) for group in problem.together):
        return False
    for part in (0, 1):
        reaches = _closure(problem, part)
        held = [v for v in own if problem.parts[v] == part]
        outside = [v for v in range(problem.num_layers) if problem.parts[v] == part and v not in own]
        if any((u, v) in reaches and (v, w) in reaches for u in held for w in held for v in outside):
            return False
    return True


@cache
def _closure(problem: BranchingProblem, part: int) -> frozenset[tuple[int, int]]:
    """All (u, w) with a path from u to w inside the part."""
    pairs = {(t.source, v) for t in problem.tensors for v in t.consumers}
    pairs = {(u, v) for u, v in pairs if problem.parts[u] == problem.parts[v] == part}
    while True:
        longer = {(u, w) for (u, v), (x, w) in combinations_of(pairs) if v == x} - pairs
        if not longer:
            return frozenset(pairs)
        pairs |= longer


def combinations_of(pairs: set[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    ordered = [*combinations(sorted(pairs), 2)]
    return ordered + [(b, a) for a, b in ordered]


def _load(problem: BranchingProblem, c: int, mask: int) -> float:
    """Times of the layers, what they take in and what they send; inf where they do not fit."""
    own, chips = set(_members(mask)), problem.classes[c]
    if sum(problem.sizes[v] for v in own) > chips.size_limit:
        return math.inf
    load = sum(chips.layer_times[v] for v in own)
    for tensor, time in zip(problem.tensors, chips.transfer_times, strict=True):
        consumed_here = any(v in own for v in tensor.consumers)
        consumed_elsewhere = any(v not in own for v in tensor.consumers)
        if (tensor.source in own and consumed_elsewhere) or (tensor.source not in own and consumed_here):
            load += time
    return load
