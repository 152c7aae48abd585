"""Look after the ledger and its home: python -m metatok.experiment status | gc | export"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from metatok.commands import Command, run_command
from metatok.experiment.home import Home


@dataclass(frozen=True)
class Status:
    """How the latest sweep stands: cells done, running, failed and to do, loss, speed, time left.

    preset: the latest sweep of this preset. sweep: the sweep whose id starts so.
    watch: look again every 5 s until it has ended.
    home: where results are; default $METATOK_HOME, else ~/.metatok.
    """

    preset: str | None = None
    sweep: str | None = None
    watch: bool = False
    home: Path | None = None

    def run(self) -> None:
        home = Home.existing(self.home)
        from metatok.experiment.ledger import Ledger  # MLflow's import takes a second
        from metatok.experiment.ledger.status import show_status

        show_status(Ledger.open(home), self.preset, self.sweep, self.watch)


@dataclass(frozen=True)
class Gc:
    """List what no ledger entry needs under the home, with sizes.

    remove: remove it too.
    home: where results are; default $METATOK_HOME, else ~/.metatok.
    """

    remove: bool = False
    home: Path | None = None

    def run(self) -> None:
        home = Home.existing(self.home)
        from metatok.experiment.ledger import Ledger
        from metatok.experiment.ledger.gc import collect

        collect(home, Ledger.open(home), self.remove)


@dataclass(frozen=True)
class Export:
    """Write a finished cell's model and tokenizer as a folder that transformers loads.

    cell: its run's name in the ledger, or how its fingerprint starts.
    out: the folder to write.
    home: where results are; default $METATOK_HOME, else ~/.metatok.
    """

    cell: tyro.conf.Positional[str]
    out: Path
    home: Path | None = None

    def run(self) -> None:
        home = Home.existing(self.home)
        from metatok.experiment.execution import export_cell
        from metatok.experiment.ledger import Ledger

        print(f"{export_cell(home, Ledger.open(home), self.cell, self.out)} -> {self.out}")


COMMANDS: Mapping[str, type[Command]] = {"status": Status, "gc": Gc, "export": Export}


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 on a mistake, 130 on Ctrl-C."""
    return run_command(COMMANDS, "python -m metatok.experiment", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
