"""Write a folder of images: tiles of the two photographs that ship with scikit-learn.

    python -m examples.pictures FOLDER
    kfp-tfjob run --data FOLDER

520 images of 32 by 32 pixels, as JPEG and PNG, in the folders `temple` and `flower`, which are
their classes. No two tiles overlap.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_image

PHOTOGRAPHS = {"temple": "china.jpg", "flower": "flower.jpg"}
SIDE = 32  # pixels


def write(folder: Path) -> int:
    """Write the tiles.

    Args:
        folder: The folder of the folders of the classes.

    Returns:
        The number of images.
    """
    written = 0
    for name, photograph in PHOTOGRAPHS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        whole = Image.fromarray(load_sample_image(photograph))
        for top in range(0, whole.height - SIDE + 1, SIDE):
            for left in range(0, whole.width - SIDE + 1, SIDE):
                tile = whole.crop((left, top, left + SIDE, top + SIDE))
                ending = "png" if written % 4 == 0 else "jpg"
                tile.save(folder / name / f"{top:03d}-{left:03d}.{ending}", quality=90)
                written += 1
    return written


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(f"{sys.argv[1]}: {write(Path(sys.argv[1]))} pictures")
