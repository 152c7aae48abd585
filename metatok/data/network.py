"""Reading from the network, with a limit on every wait."""

import threading
import urllib.request


def fetch(url: str, timeout: float) -> bytes:
    """The body of `url`.

    Raises OSError where no answer comes within `timeout` seconds, name look-up included, where it then stalls
    for as long or takes more than ten times that, and urllib.error.HTTPError, an OSError, for a refusal.
    """
    answered = threading.Event()
    result: list[bytes | Exception] = []

    def read() -> None:
        try:
            with urllib.request.urlopen(url, timeout=timeout) as response:
                answered.set()
                result.append(response.read())
        except Exception as error:
            result.append(error)
        answered.set()

    # A thread, because a name look-up obeys no time-out.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    if answered.wait(timeout):
        thread.join(10 * timeout)
    if not result:
        raise TimeoutError(f"no answer from {url} in time")
    if isinstance(result[0], bytes):
        return result[0]
    if isinstance(result[0], OSError):
        raise result[0]
    raise OSError(f"{url}: {result[0]}") from result[0]
