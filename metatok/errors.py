"""The one exception a user's own mistake raises."""


class ConfigError(ValueError):
    """A setting that cannot work. The message is one line: the field, the value and the way out.

    Raised before any work starts; the command line prints it and exits with code 2.
    """
