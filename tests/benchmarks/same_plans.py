"""Equal inputs give equal bytes: whatever the number of worker processes, the hash seed, and the older plan.

    python -m tests.benchmarks.same_plans [--time-limit S] [--list] [WORDS ...]

Two processes with other hash seeds solve every case; cases that the clock ends are named and not compared, because the
clock may decide what they find. WORDS: only cases whose names hold one of them. Exit code 1: two plans differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

__all__ = ["DECIDED", "GIVEN", "MORE_TIME", "Case", "Compared", "Solver", "cases", "compare", "main"]

ROOT = Path(__file__).parents[2]
GIVEN = ROOT.parent / "shared" / "cases"
"""Cases from outside, beside the project."""
DECIDED = ("gap", "exhausted", "infeasible", "InfeasibleError")
"""Why a solve stopped when the clock had no part in it."""
MORE_TIME = 4.0
"""Times the time that the first solve may take, for the others: an older plan may not have a say before half of it."""


@dataclass(frozen=True)
class Case:
    """kind: `plan` (a cluster and a model with `shapes`), `peer` or `graph` (a file of the cases from outside)."""

    kind: str
    cluster: str
    model: str = ""
    shapes: str = ""

    @property
    def name(self) -> str:
        return " ".join(word for word in (self.kind, self.cluster, self.model, self.shapes) if word)


@dataclass(frozen=True)
class Compared:
    """first: why the first solve stopped.  different: which other solves did not give the same.  left_out: those that
    the clock ended.
    """

    case: Case
    first: str
    different: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.different:
            return f"DIFFERENT  {self.case.name}: {', '.join(self.different)}"
        if self.first not in DECIDED:
            return f"{self.first:<9}  {self.case.name}"
        return f"same       {self.case.name}" + "".join(f"; {name}: time" for name in self.left_out)


def cases() -> list[Case]:
    """The benchmarks, every sensible pair of a shipped cluster and model with both sorts of pipelines, and the cases
    from outside.
    """
    from planner.bench.cases import CASES
    from tests.test_pairs import pairs

    found = [Case("plan", c.cluster, c.model, c.pipelines) for c in CASES]
    found += [Case("plan", *pair, shapes) for shapes in ("identical", "mixed") for pair in pairs()]
    found += [Case("peer", path.stem) for path in sorted((GIVEN / "peers").glob("*.json"))]
    found += [Case("graph", path.stem) for path in sorted((GIVEN / "graphs").glob("*.json"))]
    return [*dict.fromkeys(found)]


# ---- one solve, in a process of its own -----------------------------------------------------------------------------


def answer(case: Case, time_limit_s: float, jobs: int, older: str | None) -> dict[str, Any]:
    """Why it stopped and what it gave, as text."""
    if case.kind == "peer":
        from planner.search.mixed_stages import solve_mixed
        from tests.search.mixed_stages.peer_case import PeerCase

        document = json.loads((GIVEN / "peers" / f"{case.cluster}.json").read_text("utf-8"))
        given = solve_mixed(PeerCase(document), gap=0.001, time_limit_s=time_limit_s)
        return {"why": given.stop, "text": repr((given.plan, given.objective_s, given.bound_s))}
    if case.kind == "graph":
        from planner.search.branching import solve_branching
        from tests.search.branching.public_graphs import problem_of, read_graph

        placed = solve_branching(problem_of(read_graph(case.cluster)), gap=1e-4, time_limit_s=time_limit_s)
        return {"why": placed.stopped, "text": repr((placed.placement, placed.objective, placed.bound))}
    return _plan(case, time_limit_s, jobs, older)


def _plan(case: Case, time_limit_s: float, jobs: int, older: str | None) -> dict[str, Any]:
    from planner.errors import DplanError
    from planner.plan import Plan
    from planner.plan.file import dump_plan
    from planner.search import SolveOptions, solve
    from planner.spec import load_cluster, load_model

    model = load_model(case.model)
    model = model.model_copy(update={"constraints": model.constraints.model_copy(update={"shapes": case.shapes})})
    warm = None if older is None else Plan.model_validate_json(older)
    options = SolveOptions(time_limit_s=time_limit_s, jobs=jobs, warm_start=warm)
    try:
        result = solve(load_cluster(case.cluster), model, options)
    except DplanError as error:
        return {"why": type(error).__name__, "text": error.render()}
    return {"why": result.why_stopped, "text": dump_plan(result.plan)}


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answers a question a line, until there are no more."""
    for line in questions:
        question = json.loads(line)
        case = Case(**question.pop("case"))
        print(json.dumps(answer(case, **question)), file=answers, flush=True)


# ---- two of them ----------------------------------------------------------------------------------------------------


class Solver:
    """A process that solves what it is asked, with a hash seed of its own."""

    def __init__(self, seed: int) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.benchmarks.same_plans", "--serve"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, case: Case, time_limit_s: float, jobs: int = 1, older: str | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        question = {"case": vars(case), "time_limit_s": time_limit_s, "jobs": jobs, "older": older}
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"{case.name}: the process ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Solver:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def compare(chosen: Sequence[Case], time_limit_s: float) -> Iterator[Compared]:
    """Every case: one process, then two with another hash seed, then with an older plan: its own, and that of a second
    of search.
    """
    with Solver(seed=0) as first, Solver(seed=4242) as second:
        for case in chosen:
            begun = first.ask(case, time_limit_s)
            if begun["why"] not in DECIDED:
                yield Compared(case, begun["why"])
                continue
            more = MORE_TIME * time_limit_s
            others = {"two processes": second.ask(case, more, jobs=2)}
            if case.kind == "plan":
                early = second.ask(case, 0.5)
                if begun["text"].startswith("{"):
                    others["its own plan as the older one"] = first.ask(case, more, older=begun["text"])
                if early["text"].startswith("{"):
                    others["an early plan as the older one"] = second.ask(case, more, older=early["text"])
            different = tuple(k for k, v in others.items() if v["why"] in DECIDED and v["text"] != begun["text"])
            left_out = tuple(k for k, v in others.items() if v["why"] not in DECIDED)
            tell(case, begun["text"], {k: v["text"] for k, v in others.items() if k in different})
            yield Compared(case, begun["why"], different, left_out)


def tell(case: Case, first: str, different: dict[str, str]) -> None:
    """Says where two texts differ first."""
    for name, text in different.items():
        at = next((i for i, (a, b) in enumerate(zip(first, text, strict=False)) if a != b), min(len(first), len(text)))
        start = max(0, at - 60)
        print(f"  {case.name}, {name}: sha256 {_short(first)} and {_short(text)}", file=sys.stderr)
        print(f"  ...{first[start : at + 60]!r}\n  ...{text[start : at + 60]!r}", file=sys.stderr)


def _short(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose names hold one of these")
    parser.add_argument("--time-limit", type=float, default=20.0, help="of the first solve, seconds (default: 20)")
    parser.add_argument("--list", action="store_true", help="the cases, and nothing else")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        serve(sys.stdin, sys.stdout)
        return 0
    chosen = [case for case in cases() if not given.words or any(word in case.name for word in given.words)]
    if given.list:
        print(*(case.name for case in chosen), sep="\n")
        return 0
    counts = {"same": 0, "different": 0, "not compared": 0}
    for found in compare(chosen, given.time_limit):
        print(found, flush=True)
        counts["different" if found.different else "same" if found.first in DECIDED else "not compared"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
