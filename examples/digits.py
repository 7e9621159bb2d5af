"""Write the handwritten digits that ship with scikit-learn as CSV.

    python -m examples.digits FILE.csv

1,797 images of 8 by 8 pixels, each pixel 0 to 16 (E. Alpaydin, C. Kaynak, UCI, 1998).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from sklearn.datasets import load_digits


def write(path: Path) -> int:
    """Write the digits: columns pixel_0_0 to pixel_7_7, and digit.

    Args:
        path: The file to write.

    Returns:
        The number of rows.
    """
    digits: Any = load_digits()
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*digits.feature_names, "digit"])
        for pixels, digit in zip(digits.data, digits.target, strict=True):
            table.writerow([*(int(value) for value in pixels), digit])
    return len(digits.target)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(f"{sys.argv[1]}: {write(Path(sys.argv[1]))} rows")
