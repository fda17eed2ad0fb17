"""Reading and writing: one atomic writer for every file, canonical JSON, and plans read as untrusted input."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError, Problem

if TYPE_CHECKING:
    from planner.plan.schema import Plan

__all__ = [
    "MAX_DEPTH",
    "MAX_PLAN_BYTES",
    "canonical_json",
    "dump_plan",
    "load_plan",
    "parse_plan",
    "pretty_json",
    "refuse_unwritable",
    "save_plan",
    "sha256_of",
    "write_atomic",
]

MAX_PLAN_BYTES = 256 * 2**20
"""A plan for 100,000 chips is about 2 MB; beyond this it is no plan."""
MAX_DEPTH = 64
"""Levels of nesting; a plan has about 12."""
_LINE_WIDTH = 118


# ---- JSON -----------------------------------------------------------------------------------------------------------


def canonical_json(document: Any) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, UTF-8, shortest floats that read back equal."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256_of(document: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(document)).hexdigest()


def pretty_json(value: Any, indent: int = 0) -> str:
    """JSON for people and for `git diff`: sorted keys, two spaces, whatever fits on a line on one line."""
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if indent + len(flat) <= _LINE_WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return flat
    pad, end = " " * (indent + 2), " " * indent
    if isinstance(value, dict):
        items = [f"{_quoted(key)}: {pretty_json(value[key], indent + 2)}" for key in sorted(value)]
        return "{\n" + ",\n".join(pad + item for item in items) + f"\n{end}}}"
    items = [pretty_json(item, indent + 2) for item in value]
    if not any(isinstance(item, dict | list | tuple) for item in value):
        return "[\n" + "\n".join(pad + line for line in _filled(items, _LINE_WIDTH - len(pad))) + f"\n{end}]"
    return "[\n" + ",\n".join(pad + item for item in items) + f"\n{end}]"


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def _filled(items: list[str], width: int) -> Iterable[str]:
    """Scalars separated by commas, as many a line as fit."""
    line = ""
    for index, item in enumerate(items):
        piece = item + ("," if index < len(items) - 1 else "")
        if line and len(line) + 1 + len(piece) > width:
            yield line
            line = ""
        line = f"{line} {piece}" if line else piece
    yield line


def dump_plan(plan: Plan) -> str:
    """The bytes of a plan file, as text: equal plans give equal text."""
    return pretty_json(plan.model_dump(mode="json")) + "\n"


# ---- writing --------------------------------------------------------------------------------------------------------


def save_plan(plan: Plan, path: str) -> None:
    """Write a plan atomically; `-` is standard output."""
    if path == "-":
        sys.stdout.write(dump_plan(plan))
        sys.stdout.flush()
    else:
        write_atomic(path, dump_plan(plan))


def write_atomic(path: str | Path, text: str) -> None:
    """Write a whole file or leave the old one as it was.

    The text goes to a temporary file in the same directory, is forced to disk, and takes the name in one step. A link
    is followed. What is no file (a pipe, `/dev/null`) is written directly, since a rename would replace it.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if mode is not None and not stat.S_ISREG(mode):
            target.write_text(text, encoding="utf-8")
            return
        _replace(target, text.encode("utf-8"), mode)
    except (OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise _unwritable(path, error) from error


def refuse_unwritable(path: str | Path) -> None:
    """Find out before the work whether `path` can be written after it. Raises InputError."""
    try:
        _try_place(Path(os.path.realpath(path)))
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _try_place(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not target.is_file():
        return
    if not target.parent.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory")
    if not target.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    """Make the new name durable; file systems that cannot do it say so, and the file itself is safe already."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    number, reason = (error.errno or 0, error.strerror) if isinstance(error, OSError) else (0, None)
    fixes = {
        errno.EISDIR: "name a file in it, such as plan.json",
        errno.ENOENT: "create the directory first, or choose another place",
        errno.ENOTDIR: "one of the parents is a file; choose another place",
        errno.EACCES: "choose a place you may write to",
        errno.EROFS: "choose a place you may write to",
        errno.ENOSPC: "free some space, or choose another place",
    }
    return InputError.single(
        file=str(path),
        what="cannot be written",
        why=(reason or str(error)).lower(),
        fix=fixes.get(number, "choose another place"),
    )


# ---- reading --------------------------------------------------------------------------------------------------------


def load_plan(path: str) -> Plan:
    """Read a plan file; `-` is standard input."""
    return parse_plan(_read(path), "standard input" if path == "-" else path)


def _read(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_PLAN_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError.single(
            file=path,
            what="cannot be read",
            why=(reason or str(error)).lower(),
            fix="name a plan that `dplan solve` wrote",
        ) from error
    if len(data) > MAX_PLAN_BYTES:
        raise InputError.single(
            file=path,
            what=f"is larger than {MAX_PLAN_BYTES // 2**20} MiB",
            why="no plan is that large",
            fix="name a plan that `dplan solve` wrote",
        )
    return data


def parse_plan(data: bytes | str, file: str) -> Plan:
    """A plan from the bytes of its file; `file` is for messages. Raises InputError with every problem found."""
    from pydantic import ValidationError

    from planner.plan.schema import Plan

    document = _parse_json(data, file)
    _refuse_foreign(document, file)
    try:
        return Plan.model_validate(document)
    except ValidationError as error:
        raise InputError([_problem(detail, file) for detail in error.errors()]) from error


def _parse_json(data: bytes | str, file: str) -> Any:
    fix = "name a plan that `dplan solve` wrote"
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise InputError.single(
            file=file, what="is not text", why=f"byte {error.start} is not UTF-8", fix=fix
        ) from error
    except json.JSONDecodeError as error:
        raise InputError.single(
            file=file, line=error.lineno, column=error.colno, what="is not JSON", why=error.msg.lower(), fix=fix
        ) from error
    except RecursionError as error:
        raise InputError.single(
            file=file, what="is nested too deeply", why=f"more than {MAX_DEPTH} levels", fix=fix
        ) from error
    except ValueError as error:
        raise InputError.single(file=file, what="is not a plan", why=str(error), fix=fix) from error
    if _deeper_than(document, MAX_DEPTH):
        raise InputError.single(file=file, what="is nested too deeply", why=f"more than {MAX_DEPTH} levels", fix=fix)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:80]!r} stands twice in one object")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:40]} is too large")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, dict | list)]
    return ()


def _refuse_foreign(document: Any, file: str) -> None:
    """Refuse what is no plan, or one of a version that is not known, before its fields are read."""
    from planner.plan.schema import FORMAT_VERSION

    if not isinstance(document, Mapping) or document.get("format") != "dplan-plan":
        raise InputError.single(
            file=file,
            path="format",
            what="is not a dplan plan",
            why="a plan has `format: dplan-plan`",
            fix="name a plan that `dplan solve` wrote",
        )
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError.single(
            file=file,
            path="format_version",
            what=f"version {str(version)[:40]!r} is not known",
            why=f"this dplan reads version {FORMAT_VERSION!r}",
            fix="read it with the dplan that wrote it, or solve again",
        )


def _problem(detail: Any, file: str) -> Problem:
    """One of pydantic's complaints, in our four parts."""
    path = ""
    for step in detail["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    given = "" if detail["type"] == "missing" else f"{detail['input']!r:.60}"
    what = {"missing": "is missing", "extra_forbidden": "is not a field of a plan"}.get(
        detail["type"], f"{given} is not possible"
    )
    return Problem(
        file=file,
        path=path,
        what=what,
        why=detail["msg"][:1].lower() + detail["msg"][1:],
        fix="solve again, or correct it by hand",
    )
