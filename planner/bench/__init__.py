"""Benchmarks: a fixed family of cases, each planned in a process of its own, and the comparison with an earlier run."""

from __future__ import annotations

__all__: list[str] = []
