"""Write a table of people and their income as CSV, with columns of all types and missing values.

    python -m examples.people FILE.csv [ROWS [SEED]]

The people are drawn, not real. Income is the text `<=50K` or `>50K`; it depends on age, hours,
occupation, city and on how long someone has been a member, and partly on chance.
"""

from __future__ import annotations

import csv
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np

HEADER = ("age", "hours", "occupation", "city", "signed_up", "member", "income")
LABEL = "income"
OCCUPATIONS = {
    "clerk": -0.4,
    "nurse": 0.1,
    "teacher": 0.2,
    "engineer": 1.3,
    "manager": 1.6,
    "driver": -0.7,
    "cook": -1.0,
    "lawyer": 1.8,
    "farmer": -0.6,
    "sales": 0.3,
    "astronaut": 2.5,  # rare
}
CITIES = {
    "Berlin": 0.1,
    "Paris": 0.3,
    "Rome": -0.2,
    "Zürich": 1.2,
    "Lagos": -0.6,
    "São Paulo": -0.3,
    "New York, NY": 0.9,
    "Tokyo": 0.6,
    "Pune": -0.5,
}
_FIRST = date(2015, 1, 1)
_DAYS = 3650
_GAPS = {"age": 0.06, "hours": 0.03, "occupation": 0.05, "city": 0.02, "signed_up": 0.02}


def write(path: Path, rows: int = 6000, seed: int = 0) -> int:
    """Write people.

    Args:
        path: The file to write.
        rows: Their number.
        seed: The same seed gives the same people.

    Returns:
        The number of rows.
    """
    random = np.random.default_rng(seed)
    shares = np.array([9, 7, 8, 8, 6, 7, 6, 3, 3, 8, 0.05])
    age = np.clip(random.normal(41, 13, rows), 17, 90).round().astype(int)
    hours = np.clip(random.normal(39, 9, rows), 4, 80).round(1)
    occupation = random.choice(list(OCCUPATIONS), rows, p=shares / shares.sum())
    city = random.choice(list(CITIES), rows)
    days = random.integers(0, _DAYS, rows)
    member = random.random(rows) < 0.4
    score = (
        0.05 * (age - 41)
        - 0.0016 * (age - 50.0) ** 2
        + 0.06 * (hours - 39)
        + np.array([OCCUPATIONS[name] for name in occupation])
        + np.array([CITIES[name] for name in city])
        + 0.5 * member
        - 0.0002 * days
        - 0.4
    )
    rich = random.random(rows) < 1 / (1 + np.exp(-1.6 * score))
    gaps = {name: random.random(rows) < share for name, share in _GAPS.items()}
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for i in range(rows):
            values = {
                "age": age[i],
                "hours": hours[i],
                "occupation": occupation[i],
                "city": city[i],
                "signed_up": _FIRST + timedelta(days=int(days[i])),
                "member": "yes" if member[i] else "no",
                LABEL: ">50K" if rich[i] else "<=50K",
            }
            table.writerow(
                "" if name in gaps and gaps[name][i] else values[name] for name in HEADER
            )
    return rows


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    given = [int(value) for value in sys.argv[2:]]
    print(f"{sys.argv[1]}: {write(Path(sys.argv[1]), *given)} rows")
