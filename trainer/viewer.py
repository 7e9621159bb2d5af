"""TensorBoard for a folder in S3: `python3 -m trainer.viewer tensorboard --logdir=s3://...`.

TensorBoard reads files through TensorFlow where there is one, and TensorFlow 2.21 cannot read S3.
Without TensorFlow it reads S3 by itself, through boto3.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run TensorBoard with the arguments that follow its name."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # importing it fails from here on
    # boto3 asks for the region by another name than everybody else.
    os.environ.setdefault("AWS_DEFAULT_REGION", os.environ.get("AWS_REGION") or "us-east-1")
    from tensorboard.main import run_main

    sys.argv = sys.argv[1:]
    run_main()


if __name__ == "__main__":
    main()
