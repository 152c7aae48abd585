"""The one command line of all sweep scripts: a preset, any of whose fields can be overridden."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import ValidationError

from metatok.commands import parse_options
from metatok.data.corpus import open_corpus
from metatok.errors import ConfigError, one_line
from metatok.experiment import Home, Preset, get_preset
from metatok.experiment.design import distinct_inputs, with_ancestors
from metatok.experiment.inputs import Inputs


@dataclass(frozen=True)
class Command:
    """Run what of a preset's cells is missing in the ledger.

    preset: smoke, laptop, gpu or paper; every other option overrides one of its fields.
    dry_run: print the plan (cells, tokens, FLOPs, hours, disk) and stop.
    home: where results go; default $METATOK_HOME, else ~/.metatok.
    """

    fields: Annotated[Preset, tyro.conf.arg(name="")]
    preset: str = "smoke"
    dry_run: bool = False
    home: Path | None = None


def parse(arguments: Sequence[str], stage: str | None, description: str) -> Command:
    """The command of these arguments. Errors: ConfigError in one line."""
    preset = get_preset(_value_of("--preset", arguments) or "smoke")
    if stage is not None:
        preset = preset.model_copy(update={"stages": (stage,)})
    default = Command(fields=preset, preset=preset.name)
    command, unknown = parse_options(Command, arguments, default=default, description=description)
    try:
        fields = Preset.model_validate(command.fields)
    except ValidationError as error:
        raise ConfigError(one_line(error)) from None
    if unknown:
        raise ConfigError(
            f"option {unknown[0]!r} is unknown{_suggestion(unknown[0], preset)}; --help lists all"
        )
    return Command(fields, command.preset, command.dry_run, command.home)


def main(stage: str | None = None, description: str = "") -> None:
    """Entry point of the scripts: `stage` None runs all. Exits 0, 1 if a cell failed, 2 on a mistake,
    130 on Ctrl-C.
    """
    try:
        command = parse(sys.argv[1:], stage, description)
        home = Home.open(command.home)
        _check(command.fields, home)
        from sweeps.engine.sweep import run_sweep  # MLflow's import takes seconds, which a mistake should not

        code = run_sweep(command.fields, home, command.dry_run)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("Stopped. The same command again goes on from here.", file=sys.stderr)
        code = 130
    sys.exit(code)


def _check(preset: Preset, home: Home) -> None:
    """Refuse at once what can be seen to fail: fields that do not go together, text or ledger not there."""
    inputs = Inputs(home.datasets)
    wanted = (
        config for config in distinct_inputs(with_ancestors(preset.cells())) if not inputs.ready(config)
    )
    if preset.corpus.source == "files" and any(map(inputs.reads_corpus, wanted)):
        open_corpus(preset.corpus)
    home.check_answers()


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def _suggestion(option: str, preset: Preset) -> str:
    known = [
        "--preset",
        "--dry-run",
        "--home",
        *(f"--{name}" for name in _field_names(preset.model_dump(), "")),
    ]
    typed = option.partition("=")[0].replace("_", "-")
    close = difflib.get_close_matches(typed, known, n=1)
    return f" (did you mean {close[0]}?)" if close and close[0] != typed else ""


def _field_names(fields: dict, prefix: str) -> list[str]:
    names = []
    for name, value in fields.items():
        path = f"{prefix}{name.replace('_', '-')}"
        names += _field_names(value, f"{path}.") if isinstance(value, dict) and value else [path]
    return names
