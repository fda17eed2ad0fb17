"""The `dplan` command: its verbs, and what happens to every exception."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from planner import __version__
from planner.cli import bench, check, chips, init, model, schema, show, solve
from planner.errors import DplanError, InputError

__all__ = ["app", "main"]

_BROKEN_PIPE = 141
"""What a shell reports for a program whose reader went away."""
_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a full disk gives. Files are written in one place, which explains it; here it is standard output."""
_USAGE_ERROR: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")
"""Everything that typer itself says about a command line; its home changed between versions of typer."""


class Verbs(TyperGroup):
    """The commands; turns every exception of theirs into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._explained(ctx)
        except BrokenPipeError:  # whoever reads our output or our messages went away
            _forget_readers()
            raise typer.Exit(_BROKEN_PIPE) from None

    def _explained(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (typer.Exit, typer.Abort, _USAGE_ERROR, BrokenPipeError):
            raise
        except OSError as error:
            if error.errno not in _NO_ROOM or error.filename is not None:
                raise typer.Exit(_failed(error)) from None
            _forget(sys.stdout)
            why = (error.strerror or str(error)).lower()
            problem = InputError.single("cannot be written", why, "send it to another place", file="standard output")
            print(problem.render(), file=sys.stderr)
            raise typer.Exit(problem.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted; nothing was written", file=sys.stderr)
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            raise typer.Exit(_failed(error)) from None


def _failed(error: Exception) -> int:
    """The message of an exception, with --debug also its traceback; gives the exit code."""
    if _asked_for("--debug"):
        import traceback

        traceback.print_exc()
    return _report(error if isinstance(error, DplanError) else _our_bug(error))


def _asked_for(option: str) -> bool:
    return option in sys.argv[1:]


def _our_bug(error: Exception) -> DplanError:
    first = str(error).partition("\n")[0]
    name = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return DplanError(f"our bug: {name}; run it again with --debug and report what it prints")


def _report(error: DplanError) -> int:
    """The message on stderr, with --json also one document on stdout; gives the exit code."""
    print(error.render(), file=sys.stderr)
    if _asked_for("--json"):
        import json

        document = {
            "error": {"kind": type(error).__name__, "exit_code": error.exit_code, "message": error.render()},
        }
        print(json.dumps(document, indent=2))
    return error.exit_code


def _forget(stream: TextIO) -> None:
    """Nobody reads on: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _forget_readers() -> None:
    _forget(sys.stdout)
    _forget(sys.stderr)


app = typer.Typer(
    name="dplan",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's help takes 0.1 s to import
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"dplan {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Plan how to train a large model on a cluster of unlike chips, and prove how good the plan is.

    \b
    Start here:
      dplan init                            write cluster.yaml and model.yaml
      dplan solve cluster.yaml model.yaml   find the best plan, write plan.json
      dplan show plan.json                  look at it
      dplan solve mi300x-h100 llama-3.1-8b  the same with what dplan ships

    Exit codes: 0 done, 1 our bug, 2 bad input, 3 proved that no plan fits, 4 stopped before any plan was found, 5 a
    check failed, 7 a limit on a comparison is passed, 130 interrupted (the best plan so far is written).
    """


app.command()(init.init)
app.command()(solve.solve)
app.command()(show.show)
app.command()(check.check)
app.command()(model.model)
app.command()(chips.chips)
app.command()(schema.schema)
app.command()(bench.bench)


def _open_what_is_closed() -> None:
    """A caller may start us without one of the three standard files: read nothing there, and write to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    _open_what_is_closed()
    try:
        app(prog_name="dplan")
    except BrokenPipeError:  # a complaint of typer's own about the command line
        _forget_readers()
        sys.exit(_BROKEN_PIPE)
    raise AssertionError("typer leaves by itself")
