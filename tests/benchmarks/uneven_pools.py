"""What mixing pipeline shapes gains on random uneven pools: `python -m tests.benchmarks.uneven_pools [NUMBER]`.

Prints a line a pool, then median and best gain. docs/mixed-shapes.md has the figures of one run.
"""

from __future__ import annotations

import statistics
import sys

from planner.plan import check_plan
from tests.search.uneven_pools import random_pool, solved


def main(number: int) -> None:
    """Solve every pool twice, with one shape and with any."""
    gains = []
    for seed in range(number):
        groups = random_pool(seed)
        identical, mixed = solved(groups, "identical").plan, solved(groups, "mixed").plan
        assert check_plan(mixed) == ()
        gain = 1 - mixed.prediction.step_time_s / identical.prediction.step_time_s
        gains.append(gain)
        pool = " + ".join(f"{nodes}x{per_node} {chip}" for chip, nodes, per_node in groups)
        print(
            f"{seed:3d}  {pool}: {identical.prediction.step_time_s:.4g} s, mixed {mixed.prediction.step_time_s:.4g} s"
            f" ({100 * gain:.1f} %), {len(mixed.pipelines)} shapes, gap {100 * mixed.certificate.gap:.1f} %",
            flush=True,
        )
    zero = sum(gain < 1e-6 for gain in gains)
    print(f"median gain {100 * statistics.median(gains):.1f} %, best {100 * max(gains):.1f} %, none in {zero} pools")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
