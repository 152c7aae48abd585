"""Command lines: options as the fields of a dataclass, subcommands with a run(), mistakes in one line."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from itertools import takewhile
from typing import Any, Protocol, TypeVar, get_type_hints

import tyro
from pydantic import BaseModel, TypeAdapter, ValidationError
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from metatok.errors import ConfigError, one_line

_HELP = ("-h", "--help")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Options = TypeVar("Options")


class Command(Protocol):
    """The options of a subcommand, and what it does."""

    def run(self) -> None: ...


def parse_options(
    kind: type[Options], arguments: Sequence[str], **settings: Any
) -> tuple[Options, list[str]]:
    """The options that the arguments say, and what no option takes. settings: of tyro.cli.

    Nothing is checked yet: a word may stand for a number, a dict of fields for a pydantic model. So pydantic
    can check the whole, and tell a mistake by the field's full name. Errors: ConfigError in one line.
    """
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            return tyro.cli(
                kind,
                args=list(arguments),
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_REGISTRY,
                **settings,
            )
    except SystemExit as end:
        if end.code != 2:
            raise  # --help
        raise ConfigError(_unboxed(told.getvalue())) from None


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
    command, unknown = parse_options(commands[name], arguments[1:], prog=f"{program} {name}")
    if unknown:
        raise ConfigError(f"option {unknown[0]!r} of {name} is unknown; --help lists all")
    return TypeAdapter(commands[name]).validate_python(vars(command))


_REGISTRY = ConstructorRegistry()


@_REGISTRY.struct_rule
def _unchecked(info: StructTypeInfo) -> StructConstructorSpec | None:
    """A pydantic model's options, collected in a dict."""
    if not (isinstance(info.type, type) and issubclass(info.type, BaseModel)):
        return None

    def collect(**fields: Any) -> dict[str, Any]:
        return fields

    collect.__doc__ = info.type.__doc__  # --help shows it
    hints = get_type_hints(info.type, include_extras=True)
    given = info.default if isinstance(info.default, BaseModel) else None
    return StructConstructorSpec(
        instantiate=collect,
        fields=tuple(
            StructFieldSpec(
                name=name,
                type=hints[name],
                default=getattr(given, name) if given else field.get_default(call_default_factory=True),
                helptext=field.description,
            )
            for name, field in info.type.model_fields.items()
        ),
    )


@_REGISTRY.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """A number, or the word that is none, as pydantic tells that by the field's full name."""
    kind = info.type
    if kind not in (int, float):
        return None

    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            return words[0]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )


def _unboxed(text: str) -> str:
    """What tyro says in a box under a title, up to the first rule, in one line."""
    lines = [line.strip("│ ") for line in _COLOUR.sub("", text).splitlines()[1:]]
    said = " ".join(takewhile(lambda line: not line.startswith("─"), lines))
    return said.removeprefix("Error parsing ")
