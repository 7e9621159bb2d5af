"""The example pipeline in the README of each component."""

import contextlib
from pathlib import Path

from tests.docs.blocks import ROOT, blocks_of


def compile_example(step: str, compiled: Path, folder: Path) -> Path:
    """Run the example of a step as its reader does.

    Args:
        step: Such as `launch_tfjob`.
        compiled: The folder with the YAML that `kfp-tfjob compile` has written.
        folder: An empty folder to work in.

    Returns:
        The compiled pipeline.
    """
    readme = ROOT / "components" / step / "README.md"
    example = next(block for block in blocks_of(readme) if block.language == "python")
    (folder / "compiled").symlink_to(compiled.absolute())
    with contextlib.chdir(folder):
        exec(compile(example.text, str(example), "exec"), {})
    (pipeline,) = folder.glob("*.yaml")
    return pipeline
