"""Forks that die at one of their writes to the store.

For programs that ask the store in forks only: a process that has had threads may fork while
OpenSSL, at the end of one of them, holds a lock, and the fork waits for it indefinitely.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store


def die_at(at: str, done: bool = False) -> list[str]:
    """Let this process die at a write, by whichever store.

    Args:
        at: The number of the write from now on, from 1, or the end of its key.
        done: Whether it does that write before.

    Returns:
        A list that gets the key of each write.
    """
    written: list[str] = []
    one_by_one = threading.Lock()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: Any, **more: Any) -> Any:
            (address,) = (it for it in given if isinstance(it, S3Address))
            with one_by_one:
                written.append(address.key)
                here = at == str(len(written)) or (at and address.key.endswith(f"/{at}"))
            if here and not done:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*given, **more)
            if here:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return write

    for name in ("_put", "send", "delete"):
        setattr(Store, name, counted(getattr(Store, name)))
    return written


def apart(do: Callable[..., object], *given: object) -> tuple[int, Any]:
    """Call a function in a fork; return the exit code, and what it returned, by way of JSON."""
    result, answer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(answer, json.dumps(do(*given)).encode())
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(answer)
    with open(result, "rb") as pipe:
        found = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, json.loads(found) if found else None
