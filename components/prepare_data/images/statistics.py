"""Describes a dataset of images: the model's input, and statistics.json with its warnings.

Called where the dataset's documents are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.image_decoding import ImageInput
from kfp_tfjob.features.statistics import SPLITS, BadRows, LabelStatistics, StatisticsDocument
from kfp_tfjob.features.types.image import ImageProfile
from kfp_tfjob.options.image_options import PICTURE, ImageOptions

from ..column_warnings import alike_classes

_LARGEST_COMMON, _USUAL = 256, 128  # pixels


def input_of(profile: ImageProfile, options: ImageOptions) -> ImageInput:
    """Return the model's input: as the options set it, otherwise as it suits the images."""
    height, width = options.height, options.width
    if not height:
        height, width = profile.common_size or (_USUAL, _USUAL)
        if max(height, width) > _LARGEST_COMMON:
            height = width = _USUAL
    channels = options.channels or (1 if profile.is_grey else 3)
    return ImageInput(height, width, channels, options.resize, options.interpolation)


def described(
    profile: ImageProfile,
    model_input: ImageInput,
    label: str,
    classes: Sequence[str],
    class_counts: np.ndarray,
    rows: Mapping[str, int],
    bad: Mapping[str, int],
    duplicates: int,
    conflicts: int,
    notes: Sequence[str],
) -> StatisticsDocument:
    """Return the content of statistics.json.

    Args:
        profile: The images.
        model_input: The model's input.
        label: The name of the label.
        classes: Their names.
        class_counts: int64 of shape [3, classes], images by split and class.
        rows: The files that were `read`, and the images of each split.
        bad: The files that are no usable images, by rule.
        duplicates: The images that equal an earlier one.
        conflicts: Such images of another class.
        notes: What the folders say.
    """
    alike = alike_classes(classes)
    warnings = _warnings(profile, model_input, classes, class_counts, conflicts)
    return StatisticsDocument(
        features={PICTURE: profile.described()},
        label=LabelStatistics.of_classes(label, classes, class_counts),
        rows=rows,
        duplicates=duplicates,
        conflicts=conflicts,
        bad_rows=BadRows(sum(bad.values()), bad),
        warnings=(*notes, *warnings, *alike),
        suspicions=tuple(alike) or None,
    )


def _warnings(
    profile: ImageProfile,
    model_input: ImageInput,
    classes: Sequence[str],
    class_counts: np.ndarray,
    conflicts: int,
) -> Iterator[str]:
    modes, total = profile.all_modes.items(), int(profile.rows[1])
    colour = sum(count for mode, count in modes if not mode.startswith("grey"))
    height, width = model_input.height, model_input.width
    counts = {
        "the same image as an earlier one, with a different label": conflicts,
        "an EXIF rotation, which training and the exported model ignore": int(profile.turned[1]),
        "an alpha channel, which is dropped": sum(n for mode, n in modes if "alpha" in mode),
        "16 bits per value; the model receives 8": sum(n for mode, n in modes if "16" in mode),
        "in color; the model receives grayscale": colour if model_input.channels == 1 else 0,
        f"less than half as large as the model's input of {height} x {width} pixels": (
            profile.smaller_than(height // 2, width // 2)
        ),
    }
    for observation, count in counts.items():
        if count:
            yield f"{count:,} of {total:,} images: {observation}"
    for split, row in zip(SPLITS[1:], class_counts[1:], strict=True):
        if lacking := [name for name, count in zip(classes, row, strict=True) if not count]:
            yield f"{split} has no image of these classes: {listed(lacking, 10)}"
