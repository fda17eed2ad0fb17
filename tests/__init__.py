"""Tests mirror the package: tests/plan for planner/plan and so on."""
