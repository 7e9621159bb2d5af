"""The GPUs of this machine, as nvidia-smi shows them, and what they do while something runs."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

QUERY = ("index", "name", "driver_version", "memory.total", "memory.used", "utilization.gpu")
_COMMAND = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
_SECONDS = 0.5  # between two samples; nvidia-smi averages utilization over up to a second
# TFLOPS of matrix products in half precision without sparsity, from NVIDIA's data sheets. The first
# name that a card's name contains counts.
PEAKS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "A30": 165.0,
    "A10G": 70.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "T4": 65.0,
    "V100": 125.0,
}


@dataclass(frozen=True)
class Card:
    """A GPU at one moment.

    Attributes:
        index: Its number, from 0.
        name: For example, `NVIDIA H100 80GB HBM3`.
        driver: The driver's version.
        memory: MiB of the card.
        used: MiB in use.
        utilization: Percent of the last moment in which a kernel ran; None where the card does not
            count it, as with MIG.
    """

    index: int
    name: str
    driver: str
    memory: int
    used: int
    utilization: int | None

    @property
    def peak(self) -> float | None:
        """TFLOPS in half precision; None for a card that PEAKS does not list."""
        return next((peak for name, peak in PEAKS.items() if name in self.name), None)


def read(text: str) -> list[Card]:
    """Return the cards in the output of nvidia-smi for QUERY.

    Raises:
        ValueError: It has another form, for example because there is no driver.
    """
    cards = []
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) != len(QUERY):
            raise ValueError(f"nvidia-smi printed {line!r}; expected {', '.join(QUERY)}")
        index, name, driver, memory, used, utilization = fields
        busy = int(utilization) if utilization.isdigit() else None
        cards.append(Card(int(index), name, driver, int(memory), int(used), busy))
    return cards


def here() -> tuple[list[Card], str]:
    """Return the cards of this machine, and why there are none."""
    if not shutil.which(_COMMAND[0]):
        return [], "there is no nvidia-smi"
    done = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return [], (done.stdout + done.stderr).strip() or f"nvidia-smi ended with {done.returncode}"
    return read(done.stdout), "nvidia-smi lists none"


@dataclass
class Samples:
    """What the cards did during an interval.

    Attributes:
        used: The largest MiB in use on any card.
        busy: Percent, one for each sample and card.
    """

    used: int = 0
    busy: list[int] = field(default_factory=list)

    def add(self, cards: list[Card]) -> None:
        """Add a sample."""
        self.used = max([self.used, *(card.used for card in cards)])
        self.busy += [card.utilization for card in cards if card.utilization is not None]

    @property
    def utilization(self) -> float | None:
        """Median percent of the samples in which a kernel ran; None without any.

        A process that starts, or compiles, leaves the card idle.
        """
        active = [percent for percent in self.busy if percent > 0]
        return statistics.median(active) if active else None


@contextmanager
def watched() -> Iterator[Samples]:
    """Sample all cards in a thread until the block ends."""
    samples, ended = Samples(), threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            samples.add(here()[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join(60)
