"""The assignment program: which unit is on which chip, so that the largest load is least, as an integer linear program.

A slot is one chip of a class. Loads are percentages of the limit, sizes parts of the size limit. One function a
constraint family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.search.branching.line import Piece
from planner.search.branching.units import Units, bits

if TYPE_CHECKING:
    import pulp

__all__ = ["AssignmentProgram", "build_assignment", "path_layers"]


@dataclass
class AssignmentProgram:
    """The program under construction.

    limit: only placements with loads up to it count.  unit_time: a hundredth of it.
    slots: (class, number in the class).  place[u, s], pay[t, s], left[v, s]: units u, tensors t, layers v, slots s.
    """

    units: Units
    limit: float
    lp: pulp.LpProblem
    slots: list[tuple[int, int]]
    load: Any = None
    place: dict[tuple[int, int], Any] = field(default_factory=dict)
    pay: dict[tuple[int, int], Any] = field(default_factory=dict)
    left: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def unit_time(self) -> float:
        return self.limit / 100

    def on(self, u: int, s: int) -> Any:
        """place[u, s], or 0 where the unit cannot be."""
        return self.place.get((u, s), 0)

    def pieces_of(self, values: Mapping[str, float]) -> list[Piece]:
        """What each slot holds in a solution."""
        held = [0] * len(self.slots)
        for (u, s), variable in self.place.items():
            if values[variable.name] > 0.5:
                held[s] |= 1 << u
        return [(self.slots[s][0], mask) for s, mask in enumerate(held) if mask]

    def start_of(self, pieces: Sequence[Piece]) -> dict[str, float]:
        """Values of all variables for a placement, equal chips in the order of their first units."""
        mask_of = dict.fromkeys(range(len(self.slots)), 0)
        for s, (c, number) in enumerate(self.slots):
            own = sorted((mask & -mask, mask) for k, mask in pieces if k == c)
            mask_of[s] = own[number][1] if number < len(own) else 0
        values = {self.load.name: max(self.units.load(c, mask) for c, mask in pieces) / self.unit_time}
        values |= {x.name: float(mask_of[s] >> u & 1) for (u, s), x in self.place.items()}
        for (t, s), x in self.pay.items():
            members = self.units.tensors[t].members
            values[x.name] = float(bool(members & mask_of[s] and members & ~mask_of[s]))
        for (v, s), x in self.left.items():
            layers = self.units.layers_of(mask_of[s])
            values[x.name] = float(bool(self.units.reach.before[v] & layers) and not layers >> v & 1)
        return values


def build_assignment(units: Units, bound: float, limit: float) -> AssignmentProgram:
    """The program for placements with a largest load between a known bound and a limit (time units of the problem)."""
    import pulp

    slots = [(c, i) for c, own in enumerate(units.problem.classes) for i in range(min(own.count, units.num_units))]
    m = AssignmentProgram(units, limit, pulp.LpProblem("assignment", pulp.LpMinimize), slots)
    m.load = m.lp.add_variable("load", bound / m.unit_time, 100)
    m.lp += m.load
    add_places(m)
    place_units(m)
    order_equal_chips(m)
    keep_contiguous(m)
    limit_size(m)
    limit_load(m)
    return m


def add_places(m: AssignmentProgram) -> None:
    """A binary for every unit and slot where the unit can be.

    place[u, s] exists where time[u, s] <= limit and size[u] <= size_limit[s]
    """
    import pulp

    for s, (c, _) in enumerate(m.slots):
        for u in range(m.units.num_units):
            if m.units.times[c][u] <= m.limit and m.units.fits(c, 1 << u):
                m.place[u, s] = m.lp.add_variable(f"place__u{u}__s{s}", 0, 1, pulp.LpInteger)


def place_units(m: AssignmentProgram) -> None:
    """Every unit is on one chip.

    for all units u:   sum_s place[u, s] = 1
    """
    import pulp

    for u in range(m.units.num_units):
        places = [m.place[u, s] for s in range(len(m.slots)) if (u, s) in m.place]
        # without a place the row reads 0 = 1, which must stay a row: an empty one would be dropped
        terms = pulp.lpSum(places) if places else 0 * m.load
        m.lp += terms == 1, f"place__u{u}"


def order_equal_chips(m: AssignmentProgram) -> None:
    """Equal chips are numbered in the order of their first units, idle ones last.

    for all units u, slots s whose predecessor s-1 is of the same class:
        place[u, s] <= sum_{w < u} place[w, s-1]
    """
    import pulp

    for s, (_, number) in enumerate(m.slots):
        for u in range(m.units.num_units):
            if number and (u, s) in m.place:
                earlier = pulp.lpSum(m.place[w, s - 1] for w in range(u) if (w, s - 1) in m.place)
                m.lp += m.place[u, s] <= earlier, f"order__u{u}__s{s}"


def keep_contiguous(m: AssignmentProgram) -> None:
    """No path inside a part leaves a chip and comes back: what lies behind its layers, less these, holds none of them.

    left[v, s] in [0, 1]: paths from slot s's layers have left them before or at layer v
    for all slots s, edges (u, v) inside a part:
        left[v, s] >= left[u, s]
        place[v, s] + left[v, s] >= place[u, s] + left[u, s]
    for all slots s, layers v:   place[v, s] + left[v, s] <= 1
    """
    layers, edges = path_layers(m.units)
    owner = m.units.unit_of
    for s in range(len(m.slots)):
        for v in layers:
            m.left[v, s] = m.lp.add_variable(f"left__v{v}__s{s}", 0, 1)
            m.lp += m.on(owner[v], s) + m.left[v, s] <= 1, f"gone__v{v}__s{s}"
        for u, v in edges:
            m.lp += m.left[v, s] >= m.left[u, s], f"stay__v{u}__v{v}__s{s}"
            past_u, past_v = (m.on(owner[w], s) + m.left[w, s] for w in (u, v))
            m.lp += past_v >= past_u, f"leave__v{u}__v{v}__s{s}"


def path_layers(units: Units) -> tuple[list[int], list[tuple[int, int]]]:
    """The layers and edges inside parts that can make a chip's layers come back.

    Left out: a first layer (nothing before it) whose next layers are all of its own unit, for a path from it goes on
    through these; a last one likewise; and parts that repeat an earlier part unit by unit.
    """
    problem, owner = units.problem, units.unit_of
    edges = {(u, v) for u, v in problem.edges() if problem.parts[u] == problem.parts[v]}
    while True:
        starts, ends = {u for u, _ in edges}, {v for _, v in edges}
        tied = {v for v in starts ^ ends if all(owner[a] == owner[b] for a, b in edges if v in (a, b))}
        if not tied:
            break
        edges = {(u, v) for u, v in edges if u not in tied and v not in tied}
    seen: set[frozenset[tuple[int, int]]] = set()
    kept: list[tuple[int, int]] = []
    for part in sorted(set(problem.parts)):
        own = sorted(e for e in edges if problem.parts[e[0]] == part)
        layers = {v for e in own for v in e}
        shape = frozenset((owner[u], owner[v]) for u, v in own)
        if len({owner[v] for v in layers}) == len(layers):  # one layer a unit: the units tell the whole
            if shape in seen:
                continue
            seen.add(shape)
        kept += own
    return sorted({v for e in kept for v in e}), kept


def limit_size(m: AssignmentProgram) -> None:
    """Each chip's units fit it.

    for all slots s with a size limit:   sum_u size[u] / size_limit[s] * place[u, s] <= 1
    """
    import pulp

    for s, (c, _) in enumerate(m.slots):
        limit = m.units.problem.classes[c].size_limit
        if limit <= 0 or sum(m.units.sizes) <= limit:
            continue  # nothing with a size has a place there, or all of it fits
        terms = [m.units.sizes[u] / limit * x for (u, slot), x in m.place.items() if slot == s and m.units.sizes[u]]
        if terms:
            m.lp += pulp.lpSum(terms) <= 1, f"size__s{s}"


def limit_load(m: AssignmentProgram) -> None:
    """The load is at least that of every chip: its units' times and the tensors that cross its border.

    for all slots s:    (percent of the limit)
        load >= sum_u time[u, s] * place[u, s] + sum_t transfer[t, s] * pay[t, s]
        pay[t, s] >= place[a, s] - place[b, s],  pay[t, s] >= place[b, s] - place[a, s]
            for the source a and every consumer b of tensor t
    """
    import pulp

    for s, (c, _) in enumerate(m.slots):
        terms = [m.units.times[c][u] / m.unit_time * x for (u, slot), x in m.place.items() if slot == s]
        for t, tensor in enumerate(m.units.tensors):
            if not tensor.times[c]:
                continue
            m.pay[t, s] = m.lp.add_variable(f"pay__t{t}__s{s}", 0, 1)
            terms.append(tensor.times[c] / m.unit_time * m.pay[t, s])
            for b in bits(tensor.members & ~(1 << tensor.source)):
                here, there = m.on(tensor.source, s), m.on(b, s)
                m.lp += m.pay[t, s] >= here - there, f"send__t{t}__u{b}__s{s}"
                m.lp += m.pay[t, s] >= there - here, f"take__t{t}__u{b}__s{s}"
        m.lp += m.load >= pulp.lpSum(terms), f"load__s{s}"
