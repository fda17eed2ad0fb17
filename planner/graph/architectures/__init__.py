"""Hugging Face configurations, each family in its own words, as one `TransformerShape`."""

from __future__ import annotations

from planner.graph.architectures.reading import known_model_types, read_architecture

__all__ = ["known_model_types", "read_architecture"]
