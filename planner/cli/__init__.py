"""The command line: one file a command; the only room that prints."""

from __future__ import annotations

__all__: list[str] = []
