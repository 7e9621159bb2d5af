"""Brings one mirror up to date: `python -m kfp_tfjob.registry.mirrors NAME`.

It is a separate process, because a client may retry for minutes and its packages are large. It
reads the `MirrorContent` as JSON from standard input. Its last line of output is the message that
`mirror.sync`, which starts it, logs. Exit code 3 means that the client is not installed.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Run the mirror whose module is named."""
    name = sys.argv[1]
    try:
        module = importlib.import_module(f"kfp_tfjob.registry.mirrors.{name}")
        message = module.sync(json.load(sys.stdin))
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")
        sys.exit(3 if isinstance(error, ImportError) else 1)
    print(message)


if __name__ == "__main__":
    main()
