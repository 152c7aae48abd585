"""Where an experiment keeps its things: $METATOK_HOME, never the working directory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metatok.errors import ConfigError, without_credentials


@dataclass(frozen=True)
class Home:
    """The folder that holds mlflow.db, artifacts/, checkpoints/, datasets/, spool/ and ray/.

    `ray job submit` copies the working directory, so nothing is written there. MLFLOW_TRACKING_URI, where
    set, takes the place of mlflow.db.
    """

    root: Path

    @classmethod
    def open(cls, path: str | Path | None = None) -> Home:
        """The home at `path`, else $METATOK_HOME, else ~/.metatok; made where missing.

        Errors: ConfigError if it cannot be written.
        """
        root = (
            Path(path or os.environ.get("METATOK_HOME") or Path.home() / ".metatok").expanduser().absolute()
        )
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise ConfigError(
                f"METATOK_HOME={root} cannot be written ({error.strerror}); set it to a folder of yours"
            ) from None
        return cls(root)

    @property
    def tracking_uri(self) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def ledger_view(self) -> str:
        """What shows the ledger in a browser: a server's address, else a command."""
        if is_server(self.tracking_uri):
            return without_credentials(self.tracking_uri)
        given = os.environ.get("MLFLOW_TRACKING_URI")  # and may hold a password
        return f"mlflow ui --backend-store-uri {'$MLFLOW_TRACKING_URI' if given else self.tracking_uri}"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def ray(self) -> Path:
        """Ray Train's and Tune's own state, which nothing of ours is read from."""
        return self.root / "ray"

    def checkpoints(self, fingerprint: str) -> str:
        """Address of a cell's checkpoints."""
        return str(self.root / "checkpoints" / fingerprint)


def is_server(tracking_uri: str) -> bool:
    """Whether it names an MLflow server, as opposed to a database."""
    return tracking_uri.startswith(("http://", "https://"))
