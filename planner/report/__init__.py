"""Tables and bars for people: what a plan, a model and a chip look like in a terminal."""

from __future__ import annotations

__all__: list[str] = []
