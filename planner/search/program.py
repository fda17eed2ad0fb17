"""The stage program: which layers each stage of a leaf holds, and how many of them are recomputed, as an integer linear
program.

Times are multiples of the fastest layer's time, sizes are GiB. One function a constraint family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.cost.recurrence import Path
from planner.search.leaf import Leaf, Split
from planner.search.windows import Windows

if TYPE_CHECKING:
    import pulp

__all__ = ["StageProgram", "build_program"]

_GIB = float(2**30)


@dataclass
class StageProgram:
    """The program under construction: expressions per stage, filled by the constraint functions."""

    leaf: Leaf
    windows: Windows
    limit_s: float
    lp: pulp.LpProblem
    unit_s: float
    take: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    started: dict[tuple[int, int], Any] = field(default_factory=dict)
    count: dict[tuple[int, int], Any] = field(default_factory=dict)
    forward: list[Any] = field(default_factory=list)
    backward: list[Any] = field(default_factory=list)
    update: list[Any] = field(default_factory=list)
    send_forward: list[Any] = field(default_factory=list)
    send_backward: list[Any] = field(default_factory=list)
    used: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    step: Any = None
    num_rows: int = 0

    @property
    def stages(self) -> range:
        """Stage indices."""
        return range(self.leaf.num_stages)

    @property
    def runs(self) -> range:
        """Indices of the chain's runs of equal layers."""
        return range(len(self.leaf.root.intervals.runs))

    def run_count(self, r: int) -> int:
        """Layers in run r."""
        return self.leaf.root.intervals.runs[r].count

    def run_kind(self, r: int) -> int:
        """Kind of run r's layers."""
        return self.leaf.root.intervals.runs[r].kind

    def split_of(self, values: Mapping[str, float]) -> Split:
        """The split that a solution stands for, whole numbers restored."""
        kinds = len(self.leaf.root.intervals.chain.kind_names)
        ends, policies, position = [], [], 0
        for s in self.stages:
            table = self.leaf.table(s)
            rows = [[0] * table.recompute_s.shape[0] for _ in range(kinds)]
            for (stage, r, q), variable in self.take.items():
                if stage == s:
                    n = round(values[variable.name]) if not isinstance(variable, int) else variable
                    rows[self.run_kind(r)][q] += n
            position += sum(map(sum, rows))
            ends.append(position)
            policies.append(tuple(tuple(row) for row in rows))
        return Split(tuple(ends), tuple(policies))


def build_program(leaf: Leaf, windows: Windows, limit_s: float, rows: Sequence[Path]) -> StageProgram:
    """The stage program of a leaf with the given lower-bound rows, for step times up to `limit_s` seconds."""
    import pulp

    m = StageProgram(leaf, windows, limit_s, pulp.LpProblem("stages", pulp.LpMinimize), _time_unit(leaf))
    m.step = m.lp.add_variable("step", 0, limit_s / m.unit_s)
    m.lp += m.step
    add_layer_counts(m)
    place_layers(m)
    keep_order(m)
    fill_stages(m)
    limit_memory(m)
    limit_host_memory(m)
    limit_drives(m)
    define_times(m)
    for row in rows:
        bound_step(m, row)
    return m


def _time_unit(leaf: Leaf) -> float:
    """The fastest layer's time, so that coefficients are near one."""
    least = min(
        float(leaf.options(s).layer_time[leaf.options(s).layer_time > 0].min(initial=1e30))
        for s in range(leaf.num_stages)
    )
    return least if least < 1e30 else 1.0


def add_layer_counts(m: StageProgram) -> None:
    """Whole layers of every run, stage and recompute policy; windows narrow them.

    take[s, r, q] integer in [0, most[s, r]];  started[s, r] binary: run r starts on stage s or before
    """
    import pulp

    for s in m.stages:
        recompute = m.leaf.table(s).recompute_s
        for r in m.runs:
            least, most = m.windows.run_bounds(s, r)
            policies = m.windows.policies(s, m.run_kind(r), recompute)
            for q in policies if most else ():
                m.take[s, r, q] = m.lp.add_variable(f"take__s{s}__r{r}__q{q}", 0, most, pulp.LpInteger)
            m.count[s, r] = pulp.lpSum(m.take[s, r, q] for q in policies if (s, r, q) in m.take)
            if least:
                m.lp += m.count[s, r] >= least, f"least__s{s}__r{r}"
            if r and s < m.leaf.num_stages - 1:
                known = m.windows.started(s, r)
                m.started[s, r] = (
                    m.lp.add_variable(f"started__s{s}__r{r}", 0, 1, pulp.LpInteger) if known is None else known
                )


def place_layers(m: StageProgram) -> None:
    """Every layer is on one stage.

    for all runs r:   sum_s count[s, r] = layers[r]
    """
    import pulp

    for r in m.runs:
        m.lp += pulp.lpSum(m.count[s, r] for s in m.stages) == m.run_count(r), f"place__r{r}"


def keep_order(m: StageProgram) -> None:
    """A run starts only where all runs before it have ended.

    for all stages s but the last, runs r >= 1:
        started[s, r] <= sum_{j<=s} count[j, r] <= layers[r] * started[s, r]
        sum_{j<=s} count[j, r-1] >= layers[r-1] * started[s, r]
    """
    import pulp

    for (s, r), started in m.started.items():
        if isinstance(started, int) and started == 0:
            continue  # the window already keeps run r off the stages up to s
        so_far = pulp.lpSum(m.count[j, r] for j in range(s + 1))
        before = pulp.lpSum(m.count[j, r - 1] for j in range(s + 1))
        if not isinstance(started, int):
            m.lp += so_far <= m.run_count(r) * started, f"start__s{s}__r{r}"
            m.lp += so_far >= started, f"begun__s{s}__r{r}"
        m.lp += before >= m.run_count(r - 1) * started, f"finish__s{s}__r{r - 1}"


def fill_stages(m: StageProgram) -> None:
    """No stage is empty; a pinned stage has its number of layers.

    for all stages s:   sum_r count[s, r] >= 1
    """
    import pulp

    pinned = m.leaf.root.limits.layers_per_stage
    for s in m.stages:
        layers = pulp.lpSum(m.count[s, r] for r in m.runs)
        if pinned is None:
            m.lp += layers >= 1, f"fill__s{s}"
        else:
            m.lp += layers == pinned[s], f"pinned__s{s}"


def limit_memory(m: StageProgram) -> None:
    """Each stage's layers fit its chip.

    for all stages s:    (GiB)
        sum_{r,q} (static[s, r] + in_flight[s] * saved[s, r, q]) * take[s, r, q] + working[s] + fixed[s] <= usable[s]
    """
    import pulp

    for s in m.stages:
        if not m.windows.memory_binds(s):
            continue
        table, k_s = m.leaf.table(s), m.leaf.in_flight[s]
        used = pulp.lpSum(
            float(table.static_bytes[m.run_kind(r)] + k_s * table.saved_bytes[q, m.run_kind(r)]) / _GIB * variable
            for (stage, r, q), variable in m.take.items()
            if stage == s
        )
        room = (table.usable_bytes - table.fixed_bytes) / _GIB
        m.lp += used + hold_working_set(m, s) + hold_staging(m, s) <= room, f"memory__s{s}"


def hold_working_set(m: StageProgram, s: int) -> Any:
    """The stage's working set is at least that of every layer kind and policy present.

    for all r, q with take[s, r, q] possible:    (GiB)
        working[s] >= transient[s, r, q] * used[s, r, q],   take[s, r, q] <= most[s, r] * used[s, r, q]
    Only what exceeds the least working set needs a binary.
    """
    table = m.leaf.table(s)
    sizes = {(r, q): float(table.transient_bytes[q, m.run_kind(r)]) / _GIB for (stage, r, q) in m.take if stage == s}
    least, most = min(sizes.values()), max(sizes.values())
    if most <= least:
        return least
    working = m.lp.add_variable(f"working__s{s}", least, most)
    for (r, q), size in sizes.items():
        if size > least:
            m.lp += working >= least + (size - least) * _used(m, s, r, q), f"working__s{s}__r{r}__q{q}"
    return working


def _used(m: StageProgram, s: int, r: int, q: int) -> Any:
    """Whether stage s has layers of run r under policy q, at least."""
    import pulp

    if (s, r, q) not in m.used:
        m.used[s, r, q] = m.lp.add_variable(f"used__s{s}__r{r}__q{q}", 0, 1, pulp.LpInteger)
        m.lp += m.take[s, r, q] <= m.windows.run_bounds(s, r)[1] * m.used[s, r, q], f"use__s{s}__r{r}__q{q}"
    return m.used[s, r, q]


def hold_staging(m: StageProgram, s: int) -> Any:
    """A stage that offloads has the staging buffers of its largest offloaded layer.

    for all r, q that offload, with take[s, r, q] possible:    (GiB)
        staging[s] >= staging[s, r, q] * used[s, r, q]
    """
    host = m.leaf.table(s).offload
    if host is None:
        return 0.0
    sizes = {(r, q): float(host.staging_bytes[q, m.run_kind(r)]) / _GIB for (stage, r, q) in m.take if stage == s}
    most = max(sizes.values())
    if not most:
        return 0.0
    staging = m.lp.add_variable(f"staging__s{s}", 0, most)
    for (r, q), size in sizes.items():
        if size:
            m.lp += staging >= size * _used(m, s, r, q), f"staging__s{s}__r{r}__q{q}"
    return staging


def limit_host_memory(m: StageProgram) -> None:
    """What each stage offloads, optimizer states and activations together, fits the chip's share of host memory.

    for all stages s:    (GiB; buffers[s] where the states are on drives)
        sum_{r,q} (states[s, r] + in_flight[s] * host[s, r, q]) * take[s, r, q] <= usable_host[s] - buffers[s]
    """
    import pulp

    for s in m.stages:
        table, k_s = m.leaf.table(s), m.leaf.in_flight[s]
        if not table.uses_host or not math.isfinite(table.usable_host_bytes):
            continue
        states, host = table.host_bytes, table.offload
        sizes: dict[tuple[int, int], float] = {}
        for stage, r, q in m.take:
            if stage == s:
                kind = m.run_kind(r)
                sizes[r, q] = 0.0 if states is None else float(states[kind])
                sizes[r, q] += 0.0 if host is None else k_s * float(host.host_bytes[q, kind])
        most = sum(
            m.windows.run_bounds(s, r)[1] * max((size for (run, _), size in sizes.items() if run == r), default=0.0)
            for r in m.runs
        )
        usable = table.usable_host_bytes - table.host_fixed_bytes
        if most > usable:
            held = pulp.lpSum(size / _GIB * m.take[s, r, q] for (r, q), size in sizes.items() if size)
            m.lp += held <= usable / _GIB, f"host__s{s}"


def limit_drives(m: StageProgram) -> None:
    """Optimizer states that each stage keeps on drives fit the chip's share of them.

    for all stages s whose states are there:    sum_{r,q} states[s, r] * take[s, r, q] <= usable_nvme[s]    (GiB)
    """
    import pulp

    for s in m.stages:
        table = m.leaf.table(s)
        states = table.nvme_bytes
        if states is None or not math.isfinite(table.usable_nvme_bytes):
            continue
        most = sum(m.windows.run_bounds(s, r)[1] * float(states[m.run_kind(r)]) for r in m.runs)
        if most > table.usable_nvme_bytes:
            taken = ((r, v) for (stage, r, _), v in m.take.items() if stage == s)
            held = pulp.lpSum(float(states[m.run_kind(r)]) / _GIB * v for r, v in taken)
            m.lp += held <= table.usable_nvme_bytes / _GIB, f"drives__s{s}"


def define_times(m: StageProgram) -> None:
    """Stage, update and transfer times as expressions of the layers held (multiples of the time unit).

    F_s = sum_{r,q} (forward[s, r] + wait[s, r, q]) take;  B_s = sum_{r,q} (backward[s, r] + recompute[s, r, q]) take
    u_s = sum_{r,q} update[s, r] take
    c_j = sum_r transfer[j, r] (cut j lies in run r: started[j, r] - started[j, r+1])
    """
    import pulp

    for s in m.stages:
        table = m.leaf.table(s)
        items = [(r, q, v) for (stage, r, q), v in m.take.items() if stage == s]
        total = table.backward_input_s + table.backward_weight_s
        after = table.reduction_s + table.optimizer_s
        forward = table.forward_s[None, :] + (0.0 if table.offload is None else table.offload.forward_s)
        only = len(forward) == 1
        m.forward.append(
            pulp.lpSum(float(forward[0 if only else q, m.run_kind(r)]) / m.unit_s * v for r, q, v in items)
        )
        m.backward.append(
            pulp.lpSum(
                float(total[m.run_kind(r)] + table.recompute_s[q, m.run_kind(r)]) / m.unit_s * v for r, q, v in items
            )
        )
        m.update.append(
            pulp.lpSum(float(after[m.run_kind(r)]) / m.unit_s * v for r, _, v in items)
            + table.fixed_update_s / m.unit_s
        )
    for j, transfer in enumerate(m.leaf.transfers):
        m.send_forward.append(_cut_time(m, j, transfer.forward_s))
        m.send_backward.append(_cut_time(m, j, transfer.backward_s))


def _cut_time(m: StageProgram, j: int, seconds: Any) -> Any:
    """Transfer time after stage j: that of the last run started by then."""
    kinds = [float(seconds[m.run_kind(r)]) / m.unit_s for r in m.runs]
    possible = [r for r in m.runs if m.windows.cut_may_lie_in(j, r)]
    if len({kinds[r] for r in possible}) == 1:
        return kinds[possible[0]]
    expression: Any = kinds[0]
    for r in m.runs:
        if r:
            expression = expression + (kinds[r] - kinds[r - 1]) * m.started[j, r]
    return expression


def bound_step(m: StageProgram, row: Path) -> None:
    """A path through the schedule bounds the step time.

    step >= sum_s (nF_s F_s + nB_s B_s) + sum_j (nc_j c_j + nc'_j c'_j) + u_exit
    """
    import pulp

    terms = [n * x for n, x in zip(row.forward, m.forward, strict=True) if n]
    terms += [n * x for n, x in zip(row.backward, m.backward, strict=True) if n]
    terms += [n * x for n, x in zip(row.send_forward, m.send_forward, strict=True) if n]
    terms += [n * x for n, x in zip(row.send_backward, m.send_backward, strict=True) if n]
    m.lp += m.step >= pulp.lpSum(terms) + m.update[row.exit_stage], f"step__{m.num_rows}"
    m.num_rows += 1
