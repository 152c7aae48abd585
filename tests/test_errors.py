"""What messages may show."""

import pytest

from metatok.errors import first_line, without_credentials


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:secret@host:5000/path?token=secret", "https://host:5000/path"),
        ("postgresql+psycopg2://u:se@cret@db/mlflow", "postgresql+psycopg2://db/mlflow"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
        ("no uri", "no uri"),
    ],
)
def test_credentials_are_left_out(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown


def test_an_error_is_told_in_one_line() -> None:
    error = RuntimeError("request to http://me:secret@host:5000/api failed\nwith a long story")
    assert first_line(error) == "request to http://host:5000/api failed"
    assert first_line(TimeoutError()) == "TimeoutError"
