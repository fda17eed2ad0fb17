"""The plan: its file, what one process needs of it, and the checker that trusts nobody."""

from __future__ import annotations

from planner.plan.check import Violation, check_plan
from planner.plan.file import parse_plan
from planner.plan.ranks import RankView
from planner.plan.schema import Plan, plan_schema

__all__ = ["Plan", "RankView", "Violation", "check_plan", "parse_plan", "plan_schema"]
