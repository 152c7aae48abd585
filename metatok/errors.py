"""The one exception a user's own mistake raises."""

from pydantic import ValidationError


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
    named = first["type"] == "value_error" and (
        not isinstance(given, str | int | float) or f"={given!r}:" in message
    )
    return message if named or not where else f"{where}={given!r}: {message}"
