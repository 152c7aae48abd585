"""Where things are kept."""

import os
from pathlib import Path

import pytest

from metatok.errors import ConfigError
from metatok.experiment import Home


def test_the_home_is_the_argument_else_the_variable_else_below_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    assert Home.open().root == tmp_path / "user" / ".metatok"
    monkeypatch.setenv("METATOK_HOME", str(tmp_path / "variable"))
    assert Home.open().root == tmp_path / "variable"
    assert Home.open("relative/deep").root == tmp_path / "relative" / "deep"
    assert Home.open("~/mine").root == tmp_path / "user" / "mine"
    assert (tmp_path / "relative" / "deep").is_dir()


def test_opening_leaves_nothing_behind(tmp_path: Path) -> None:
    Home.open(tmp_path / "h")
    Home.open(tmp_path / "h")
    assert list((tmp_path / "h").iterdir()) == []


def test_the_database_is_in_the_home_unless_a_server_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.open(tmp_path)
    assert home.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert home.tracking_uri == "http://tracker:5000"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@tracker:5000", "http://tracker:5000"),
        ("postgresql://me:secret@db/metatok", "mlflow ui --backend-store-uri $MLFLOW_TRACKING_URI"),
        (None, "mlflow ui --backend-store-uri sqlite:///{home}/mlflow.db"),
    ],
)
def test_how_to_look_at_the_ledger_is_told_without_secrets(
    uri: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert Home.open(tmp_path).ledger_view == shown.format(home=tmp_path)


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"METATOK_HOME={path} cannot be written"):
            Home.open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        Home.open(tmp_path)
    tmp_path.chmod(0o700)


def test_checkpoints_are_found_by_fingerprint(tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    assert home.checkpoints("abc") == str(tmp_path / "checkpoints" / "abc")
