"""The one exception a user's own mistake raises, and what messages may show."""

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

_URI = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


class ConfigError(ValueError):
    """A setting that cannot work. The message is one line: the field, the value and the way out.

    Raised before any work starts; the command line prints it and exits with code 2.
    """


def one_line(error: ValidationError) -> str:
    """The first mistake of a pydantic error: field, value, what is wrong."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"])
    given = first["input"]
    if first["type"] == "value_error" and isinstance(given, dict | BaseModel):
        return f"{where}.{message}" if where else message  # of several fields, which it names itself
    named = first["type"] == "value_error" and f"={given!r}:" in message
    return message if named or not where else f"{where}={given!r}: {message}"


def first_line(error: Exception) -> str:
    """Of its message, without credentials; its type, where it has none."""
    return without_credentials((str(error).splitlines() or [type(error).__name__])[0])[:200]


def without_credentials(text: str) -> str:
    """The text with user, password and query of every URI in it taken out."""
    return _URI.sub(lambda match: _bare(match.group()), text)


def _bare(uri: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
