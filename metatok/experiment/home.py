"""Where an experiment keeps its things: $METATOK_HOME, never the working directory."""

from __future__ import annotations

import http.client
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from metatok.errors import ConfigError, first_line, without_credentials


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
        root = _root(path)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise ConfigError(
                f"METATOK_HOME={root} cannot be written ({error.strerror}); set it to a folder of yours"
            ) from None
        return cls(root)

    @classmethod
    def existing(cls, path: str | Path | None = None) -> Home:
        """The home for who only reads: one that has a ledger, as none is to be made at a mistyped path.

        Errors: ConfigError if it has none.
        """
        home = cls(_root(path))
        file = Path(home.tracking_uri.removeprefix("sqlite:///"))
        # os.path's functions, unlike Path's, take a folder that may not be read for one that is not there.
        above = (folder for folder in (home.root, *home.root.parents) if os.path.exists(folder))
        could_be = all(map(os.path.isdir, above))
        if could_be and home.tracking_uri.startswith("sqlite:///") and not os.path.isfile(file):
            raise ConfigError(
                f"no ledger at {file}; run sweeps/full_paper.py first, or give --home or METATOK_HOME"
            )
        home.check_answers()
        return cls.open(home.root)

    def check_answers(self) -> None:
        """Refuse, within seconds, a tracking server that is not there. Errors: ConfigError."""
        if not is_server(self.tracking_uri):
            return
        uri = without_credentials(self.tracking_uri)
        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5) as response:
                response.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", "") or first_line(error)
            raise ConfigError(
                f"MLFLOW_TRACKING_URI={uri} does not answer ({reason}); start the server, or unset it to use "
                "$METATOK_HOME/mlflow.db"
            ) from None

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


def _root(path: str | Path | None) -> Path:
    return Path(path or os.environ.get("METATOK_HOME") or Path.home() / ".metatok").expanduser().absolute()


def is_server(tracking_uri: str) -> bool:
    """Whether it names an MLflow server, as opposed to a database."""
    return tracking_uri.startswith(("http://", "https://"))
