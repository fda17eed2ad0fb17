"""The stage program of a branching graph: which layers each stage holds, as an integer linear program.

Times are percentages of the limit, sizes GiB. One function a constraint family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.cost.branching_recurrence import BranchPath
from planner.search.branching.pipeline import PipelineProblem

if TYPE_CHECKING:
    import pulp

__all__ = ["PipelineProgram", "build_pipeline"]

_GIB = float(2**30)
Pair = tuple[int, int]


@dataclass
class PipelineProgram:
    """The program under construction: place[v, s], send[t, a, b], used[a, b], and expressions of them.

    limit_s: only step times up to it count.
    """

    problem: PipelineProblem
    limit_s: float
    lp: pulp.LpProblem
    step: Any = None
    place: dict[tuple[int, int], Any] = field(default_factory=dict)
    send: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    used: dict[Pair, Any] = field(default_factory=dict)
    forward: list[Any] = field(default_factory=list)
    backward: list[Any] = field(default_factory=list)
    update: list[Any] = field(default_factory=list)
    send_forward: dict[Pair, Any] = field(default_factory=dict)
    send_backward: dict[Pair, Any] = field(default_factory=dict)
    num_rows: int = 0

    @property
    def unit_s(self) -> float:
        return self.limit_s / 100

    @property
    def layers(self) -> range:
        return range(self.problem.num_layers)

    @property
    def stages(self) -> range:
        return range(self.problem.num_stages)

    def passing(self, t: int, s: int) -> list[Any]:
        """Variables of tensor t on its way to stage s, and from it."""
        return [sent for (tensor, *pair), sent in self.send.items() if tensor == t and s in pair]

    def stages_of(self, values: Mapping[str, float]) -> list[int]:
        """(layers,) the stage of each layer in a solution."""
        return [max(self.stages, key=lambda s: values[self.place[v, s].name]) for v in self.layers]


def build_pipeline(
    problem: PipelineProblem, bound_s: float, limit_s: float, rows: Sequence[BranchPath]
) -> PipelineProgram:
    """The program for step times between a known bound and a limit, with the given critical paths as rows."""
    import pulp

    m = PipelineProgram(problem, limit_s, pulp.LpProblem("pipeline", pulp.LpMinimize))
    m.step = m.lp.add_variable("step", min(bound_s / m.unit_s, 100), 100)
    m.lp += m.step
    place_layers(m)
    keep_order(m)
    keep_together(m)
    fill_stages(m)
    send_tensors(m)
    limit_memory(m)
    define_times(m)
    bound_stages(m)
    bound_links(m)
    for row in rows:
        bound_path(m, row)
    return m


def place_layers(m: PipelineProgram) -> None:
    """Every layer is on one stage.

    place[v, s] binary;  for all layers v:   sum_s place[v, s] = 1
    """
    import pulp

    for v in m.layers:
        for s in m.stages:
            m.place[v, s] = m.lp.add_variable(f"place__l{v}__s{s}", 0, 1, pulp.LpInteger)
        m.lp += pulp.lpSum(m.place[v, s] for s in m.stages) == 1, f"place__l{v}"


def keep_order(m: PipelineProgram) -> None:
    """What feeds a layer is on its stage or before.

    for all edges (u, v), stages s but the last:   sum_{j<=s} place[u, j] >= sum_{j<=s} place[v, j]
    """
    import pulp

    for u, v in m.problem.edges():
        for s in m.stages[:-1]:
            done_u, done_v = (pulp.lpSum(m.place[w, j] for j in range(s + 1)) for w in (u, v))
            m.lp += done_u >= done_v, f"order__l{u}__l{v}__s{s}"


def keep_together(m: PipelineProgram) -> None:
    """Layers that share a stage.

    for all groups, their first layer u and every other v, stages s:   place[v, s] = place[u, s]
    """
    for u, *others in m.problem.together:
        for v in others:
            for s in m.stages:
                m.lp += m.place[v, s] - m.place[u, s] == 0, f"together__l{u}__l{v}__s{s}"


def fill_stages(m: PipelineProgram) -> None:
    """No stage is empty.

    for all stages s:   sum_v place[v, s] >= 1
    """
    import pulp

    for s in m.stages:
        m.lp += pulp.lpSum(m.place[v, s] for v in m.layers) >= 1, f"fill__s{s}"


def limit_memory(m: PipelineProgram) -> None:
    """Each stage's layers fit its chip, with the largest working set among them.

    for all stages s:    (GiB)
        sum_v (static[s, v] + in_flight[s] * saved[s, v]) * place[v, s] + working[s]
            + sum_t buffer[s, t] * (sum_{a<s} send[t, a, s] + sum_{b>s} send[t, s, b]) <= usable[s]
        working[s] >= transient[s, v] * place[v, s]    for all layers v
    """
    import pulp

    for s in m.stages:
        table, k_s = m.problem.stages[s], m.problem.in_flight[s]
        if m.problem.fits(s, m.layers, m.problem.num_stages * sum(table.buffer_bytes)):
            continue
        working = m.lp.add_variable(f"working__s{s}", 0, max(table.transient_bytes) / _GIB)
        for v in m.layers:
            if table.transient_bytes[v]:
                m.lp += working >= table.transient_bytes[v] / _GIB * m.place[v, s], f"working__l{v}__s{s}"
        kept = [(table.static_bytes[v] + k_s * table.saved_bytes[v]) / _GIB * m.place[v, s] for v in m.layers]
        kept += [size / _GIB * sent for t, size in enumerate(table.buffer_bytes) for sent in m.passing(t, s) if size]
        m.lp += pulp.lpSum(kept) + working <= table.usable_bytes / _GIB, f"memory__s{s}"


def send_tensors(m: PipelineProgram) -> None:
    """A tensor goes once from the stage that makes it to every later stage that needs it, not through those between.

    for all tensors t with source u, stages a < b:
        send[t, a, b] <= place[u, a],   used[a, b] >= send[t, a, b]
    for all consumers v of t, stages b:   sum_{a<b} send[t, a, b] >= place[v, b] - place[u, b]
    send and used need no integrality: with whole layers only the stage that makes t can send it.
    """
    import pulp

    for a, b in m.problem.pairs:
        m.used[a, b] = m.lp.add_variable(f"used__s{a}__s{b}", 0, 1)
        for t, tensor in enumerate(m.problem.tensors):
            sent = m.send[t, a, b] = m.lp.add_variable(f"send__t{t}__s{a}__s{b}", 0, 1)
            m.lp += sent <= m.place[tensor.source, a], f"made__t{t}__s{a}__s{b}"
            m.lp += m.used[a, b] >= sent, f"used__t{t}__s{a}__s{b}"
    for t, tensor in enumerate(m.problem.tensors):
        for b in m.stages[1:]:
            arrives = pulp.lpSum(m.send[t, a, b] for a in range(b))
            for v in tensor.consumers:
                m.lp += arrives >= m.place[v, b] - m.place[tensor.source, b], f"need__t{t}__l{v}__s{b}"


def define_times(m: PipelineProgram) -> None:
    """Stage, update and transfer times as expressions of the layers held (percent of the limit).

    F_s = sum_v forward[s, v] place[v, s];  B_s, u_s likewise
    c_ab = sum_t transfer[a, b, t] send[t, a, b] + latency[a, b] used[a, b]
    """
    import pulp

    for s, table in enumerate(m.problem.stages):
        for own, seconds in ((m.forward, table.forward_s), (m.backward, table.backward_s), (m.update, table.update_s)):
            own.append(pulp.lpSum(seconds[v] / m.unit_s * m.place[v, s] for v in m.layers))
        m.update[s] = m.update[s] + table.fixed_update_s / m.unit_s
    for a, b in m.problem.pairs:
        for own_pair, table_s, latency in (
            (m.send_forward, m.problem.send_forward_s, m.problem.latency((a, b))[0]),
            (m.send_backward, m.problem.send_backward_s, m.problem.latency((a, b))[1]),
        ):
            terms = [x / m.unit_s * m.send[t, a, b] for t, x in enumerate(table_s[a, b]) if (t, a, b) in m.send]
            if latency:
                terms.append(latency / m.unit_s * m.used[a, b])
            own_pair[a, b] = pulp.lpSum(terms)


def bound_stages(m: PipelineProgram) -> None:
    """A stage works on every micro-batch, then updates.

    for all stages s:   step >= m (F_s + B_s) + u_s
    """
    for s in m.stages:
        m.lp += m.step >= m.problem.micro_batches * (m.forward[s] + m.backward[s]) + m.update[s], f"stage__s{s}"


def bound_links(m: PipelineProgram) -> None:
    """A link carries every micro-batch, one at a time, between work at both of its ends.

    for all stages a < b:   step >= m c_ab,   step >= m c'_ab
    """
    for a, b in m.problem.pairs:
        for name, sent in (("there", m.send_forward[a, b]), ("back", m.send_backward[a, b])):
            if sent:
                m.lp += m.step >= m.problem.micro_batches * sent, f"{name}__s{a}__s{b}"


def bound_path(m: PipelineProgram, row: BranchPath) -> None:
    """A path through the schedule bounds the step time, wherever the pairs of stages that it uses feed each other.

    step + sum_{(a,b) on the path} M (1 - used[a, b])
        >= sum_s (nF_s F_s + nB_s B_s) + sum_ab (nc_ab c_ab + nc'_ab c'_ab) + u_exit
    M = 100 (sum_s max(nF_s, nB_s) / m + sum_ab (nc_ab + nc'_ab) / m + 1) is enough: by the rows of stages and links,
    m (F_s + B_s), m c_ab and u_exit are at most the step, which is at most 100.
    """
    import pulp

    terms = [n * x for n, x in zip(row.forward, m.forward, strict=True) if n]
    terms += [n * x for n, x in zip(row.backward, m.backward, strict=True) if n]
    terms += [n * m.send_forward[pair] for n, pair in zip(row.send_forward, row.pairs, strict=True) if n]
    terms += [n * m.send_backward[pair] for n, pair in zip(row.send_backward, row.pairs, strict=True) if n]
    often = sum(max(n, k) for n, k in zip(row.forward, row.backward, strict=True))
    often += sum(row.send_forward) + sum(row.send_backward)
    large = 100 * (often / m.problem.micro_batches + 1)
    absent = pulp.lpSum(large - large * m.used[pair] for pair in row.pairs)
    m.lp += m.step + absent >= pulp.lpSum(terms) + m.update[row.exit_stage], f"path__{m.num_rows}"
    m.num_rows += 1
