"""Reading a file's text, whatever it turns out to be: absent, a directory, too large, binary, in another encoding."""

from __future__ import annotations

import re
import stat
import sys
from difflib import get_close_matches
from pathlib import Path

from planner.errors import InputError
from planner.spec.tree import LIMITS

__all__ = ["STDIN", "read_text"]

STDIN = "-"
_OTHER_ENCODINGS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_text(path: str | Path, noun: str) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and the name messages use.

    `noun` is what the file is, e.g. 'the cluster file'.
    """
    if str(path) == STDIN:
        return decode(_read_stdin(), "<stdin>"), "<stdin>"
    name = str(path)
    return decode(_read_file(Path(path), name, noun), name), name


def decode(data: bytes, file: str) -> str:
    """UTF-8 text; everything else is refused with the place of the first wrong byte."""
    if len(data) > LIMITS.num_bytes:
        limit = f"files may have {LIMITS.num_bytes // 2**20} MiB"
        raise InputError.single("is too large", limit, "is this the file you meant?", file=file)
    for mark, encoding in _OTHER_ENCODINGS:
        if data.startswith(mark):
            raise InputError.single(f"is written in {encoding}", "only UTF-8 is read", "save it as UTF-8", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode("utf-8", "replace"))
        what = f"byte 0x{data[error.start]:02x} is not UTF-8"
        why = "the file is binary or in another encoding"
        raise InputError.single(what, why, "save it as UTF-8 text", file=file, line=line, column=column) from None
    odd = _UNPRINTABLE.search(text)
    if odd is not None:
        line, column = _place(text[: odd.start()])
        what = f"character U+{ord(odd[0]):04X} is not text"
        raise InputError.single(what, "the file is binary or damaged", "remove it", file=file, line=line, column=column)
    return text


def _place(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _read_stdin() -> bytes:
    return sys.stdin.buffer.read(LIMITS.num_bytes + 1)


def _read_file(path: Path, name: str, noun: str) -> bytes:
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise InputError.single("is a directory", "", f"name {noun} itself", file=name)
        with path.open("rb") as file:
            return file.read(LIMITS.num_bytes + 1)
    except FileNotFoundError:
        raise InputError.single(
            "no such file", "", _close_name(path) or f"check the path of {noun}", file=name
        ) from None
    except PermissionError:
        raise InputError.single("cannot be read", "permission denied", "check its permissions", file=name) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError.single("cannot be read", reason.lower(), f"check the path of {noun}", file=name) from None


def _close_name(path: Path) -> str:
    """A file of nearly that name beside it."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())[:1000]
    except OSError:
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"did you mean '{path.with_name(close[0])}'?" if close else ""
