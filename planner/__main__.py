"""`python -m planner` is `dplan`."""

from __future__ import annotations

from planner.cli.main import main

main()
