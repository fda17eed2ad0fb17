"""Starts a case in a fresh process, listens to it, and ends it when it does not end by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.bench.child import Request

__all__ = ["Answer", "answer_of"]

_COMMAND = ("-m", "planner.bench.child")


@dataclass(frozen=True)
class Answer:
    """total_s: the whole process.  found, failure: the last line that the case wrote, exactly one of them."""

    total_s: float
    peak_bytes: int | None
    found: dict[str, Any] | None
    failure: dict[str, str] | None


def answer_of(
    request: Request,
    progress: Callable[[dict[str, Any]], None],
    most_s: float | None = None,
    command: tuple[str, ...] = _COMMAND,
) -> Answer:
    """Run a case. most_s: seconds after which its process is killed; three times its limit and a minute unless told.

    The process stands in a group of its own: Ctrl-C comes to us alone, and whoever leaves here has ended the group.
    """
    most_s = 3 * request.limit_s + 60 if most_s is None else most_s
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as complaints:
        process = _start(command, complaints)
        overtime = threading.Event()

        def give_up() -> None:
            overtime.set()
            _kill(process)

        timer = threading.Timer(min(most_s, threading.TIMEOUT_MAX), give_up)
        timer.daemon = True
        try:
            timer.start()
            last = _listen(process, request, progress)
            process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
            _close(process)
        total_s = time.perf_counter() - begin
        if last is None:
            why = _overtime(most_s) if overtime.is_set() else _crash(process.returncode, complaints)
            return Answer(total_s, None, None, why)
    return Answer(total_s, last.get("peak_bytes"), last.get("found"), last.get("failure"))


def _start(command: tuple[str, ...], complaints: IO[bytes]) -> subprocess.Popen[str]:
    """A fresh interpreter with this very package, whatever the current directory holds."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        encoding="utf-8",
        start_new_session=True,
    )


def _listen(
    process: subprocess.Popen[str], request: Request, progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    """Send the request, pass progress on, give the last message; None when the process ended without one."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):  # it ended before it read; what it said is heard all the same
        process.stdin.write(json.dumps(asdict(request)))
        process.stdin.close()
    last: dict[str, Any] | None = None
    for line in process.stdout:
        if not line.endswith("\n"):
            break  # killed in the middle of a line
        message = json.loads(line)
        if "progress" in message:
            progress(message["progress"])
        else:
            last = message
    return last


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process and whatever it started, unless it has ended: its number may be another's by now."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _close(process: subprocess.Popen[str]) -> None:
    """Close our ends of its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _overtime(most_s: float) -> dict[str, str]:
    return {"kind": "overtime", "message": f"did not end within {most_s:,.0f} s, and was killed"}


def _crash(code: int, complaints: IO[bytes]) -> dict[str, str]:
    """Killed by a signal, or an exception that nobody caught: its last line."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = "; was there too little memory?" if name == "SIGKILL" else ""
        return {"kind": "crash", "message": f"the process was ended by {name}{hint}"}
    complaints.seek(0)
    lines = complaints.read()[-10_000:].decode("utf-8", "replace").strip().splitlines()
    return {"kind": "crash", "message": f"our bug: {lines[-1][:500] if lines else f'exit code {code}'}"}
