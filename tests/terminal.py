"""Runs a program on a pseudo-terminal, and the screen that a person would see."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|\x08")
# Settings of the developer's shell or of CI, with which plain lines are printed.
_PLAIN = ("NO_COLOR", "CI", "FORCE_COLOR", "COLUMNS", "LINES")


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment on an ordinary terminal, with these variables."""
    plain = {name: value for name, value in os.environ.items() if name not in _PLAIN}
    return plain | {"TERM": "xterm-256color"} | variables


def run_on_terminal(
    command: Sequence[str],
    variables: Mapping[str, str],
    columns: int = 100,
    rows: int = 40,
    folder: Path | None = None,
) -> tuple[int, str]:
    """Run a program in `folder`, with a terminal as its input, output and errors.

    Returns:
        Its exit code, and everything it wrote.
    """
    terminal, program_end = pty.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=program_end,
        stdout=program_end,
        stderr=program_end,
        env=dict(variables),
        cwd=folder,
        start_new_session=True,
    )
    os.close(program_end)
    output = b""
    try:
        while chunk := os.read(terminal, 1 << 16):
            output += chunk
    except OSError:  # the last process has closed its end
        pass
    finally:
        os.close(terminal)
    return process.wait(), output.decode(errors="replace")


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after a program's output, without trailing blanks.

    It follows the control sequences that move the cursor or erase. The terminal is wide and high
    enough that it neither wraps nor scrolls.
    """
    lines, row, column, position = [""], 0, 0, 0

    def put(text: str) -> None:
        nonlocal column
        old = lines[row].ljust(column)
        lines[row] = old[:column] + text + old[column + len(text) :]
        column += len(text)

    for control in _CONTROL.finditer(output):
        put(output[position : control.start()])
        position = control.end()
        number = int(control[1]) if (control[1] or "").isdigit() else 1
        match control[2] or control[0]:
            case "\r":
                column = 0
            case "\x08":
                column = max(column - 1, 0)
            case "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            case "A":
                row = max(row - number, 0)
            case "K":
                lines[row] = "" if number == 2 else lines[row][:column]
            case "m" | "h" | "l":
                continue
            case other:
                raise AssertionError(f"an unexpected control sequence: {other!r}")
    put(output[position:])
    return [line.rstrip() for line in lines]
