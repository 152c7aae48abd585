"""Command lines made of subcommands, each a dataclass with a run(); mistakes in one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

import tyro
from pydantic import ValidationError

from metatok.errors import ConfigError, one_line

_HELP = ("-h", "--help")


class Command(Protocol):
    """The options of a subcommand, and what it does."""

    def run(self) -> None: ...


def run_command(
    commands: Mapping[str, type[Command]], program: str, description: str | None, arguments: Sequence[str]
) -> int:
    """Do what the arguments say. Returns the exit code: 0, 2 on a mistake, 130 on Ctrl-C."""
    try:
        _parse(commands, program, description, arguments).run()
    except (ConfigError, ValidationError) as error:
        print(f"error: {one_line(error) if isinstance(error, ValidationError) else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(
    commands: Mapping[str, type[Command]], program: str, description: str | None, arguments: Sequence[str]
) -> Command:
    name = next(iter(arguments), "")
    if name in _HELP:
        tyro.extras.subcommand_cli_from_dict(
            dict(commands), prog=program, args=[name], description=description
        )
    if name not in commands:
        raise ConfigError(
            f"command {name!r} is unknown, choose one of {', '.join(commands)}; --help tells more"
        )
    command, unknown = tyro.cli(
        commands[name],
        prog=f"{program} {name}",
        args=list(arguments[1:]),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if unknown:
        raise ConfigError(f"option {unknown[0]!r} of {name} is unknown; --help lists all")
    return command
