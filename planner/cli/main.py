"""The `dplan` command: its verbs, and what happens to every exception."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from planner import __version__
from planner.cli import check, chips, init, model, schema, show, solve
from planner.errors import DplanError

__all__ = ["app", "main"]

_BROKEN_PIPE = 141
"""What a shell reports for a program whose reader went away."""
_INTERRUPTED = 130
_USAGE_ERROR: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")
"""Everything that typer itself says about a command line; its home changed between versions of typer."""


class Verbs(TyperGroup):
    """The commands; turns every exception of theirs into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (typer.Exit, typer.Abort, _USAGE_ERROR):
            raise
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(_BROKEN_PIPE) from None
        except KeyboardInterrupt:
            print("interrupted; nothing was written", file=sys.stderr)
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            if _asked_for("--debug"):
                import traceback

                traceback.print_exc()
            raise typer.Exit(_report(error if isinstance(error, DplanError) else _our_bug(error))) from None


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


def _forget_stdout() -> None:
    """Nobody reads on: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
      dplan init                              write a commented cluster.yaml and model.yaml
      dplan solve cluster.yaml model.yaml     find the best plan, write plan.json
      dplan show plan.json                    look at it
      dplan solve mi300x-h100 llama-3.1-8b    the same with what dplan ships

    \b
    Exit codes: 0 done, 1 our bug, 2 bad input, 3 proved that no plan fits, 4 stopped before any plan was
    found, 5 a check failed, 130 interrupted (the best plan so far is written).
    """


app.command()(init.init)
app.command()(solve.solve)
app.command()(show.show)
app.command()(check.check)
app.command()(model.model)
app.command()(chips.chips)
app.command()(schema.schema)


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    app(prog_name="dplan")
    raise AssertionError("typer leaves by itself")
