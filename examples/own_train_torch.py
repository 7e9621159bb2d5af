"""Your own program for PyTorch: DistributedDataParallel on any number of replicas.

    kfp-tfjob run --data FILE.csv --label COLUMN --model examples/own_train_torch.py:main \
        --set train_options.evaluate=false \
        --set 'train_options.command=["PYTHON", "$(JOB_DIR)/code/own_train_torch.py"]'

PYTHON is a Python with torch and pyarrow; on a cluster, it is `python3`, and `train_image` names an
image with both, such as PyTorch's image after `pip install pyarrow`. The program reads the Parquet
files in DATA_DIR, which docs/dataset.md describes. The run stores and verifies the weights. It
publishes nothing, because evaluate needs a SavedModel.

Each replica is one process with at most one GPU. After a lost replica, the next attempt resumes
from the newest checkpoint, and ends with the same weights as without the loss.
"""

# The environment of this project has no torch.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA, OUTPUT = Path(os.environ["DATA_DIR"]), Path(os.environ["OUTPUT_DIR"])
EPOCHS, BATCH = int(os.environ["EPOCHS"]), int(os.environ["BATCH_SIZE"])
SCHEMA = json.loads((DATA / "schema.json").read_text())
NAMES = [feature["name"] for feature in SCHEMA["features"]]
CLASSES = SCHEMA["label"]["classes"]
STEPS = max(1, SCHEMA["splits"]["train"]["rows"] // BATCH)
CHECKPOINTS = OUTPUT / "checkpoints"
SAVE_SECONDS = json.loads(os.environ["TRAIN_OPTIONS"]).get("checkpoint_seconds", 60)
WRONG_CONFIGURATION, STOPPED, PEER_LOST = 2, 143, 138


class Normalization(nn.Module):
    """Normalizes raw rows with the statistics of the training rows."""

    def __init__(self) -> None:
        super().__init__()
        columns = json.loads((DATA / "statistics.json").read_text())["features"]
        self.register_buffer("mean", torch.tensor([columns[name]["mean"] for name in NAMES]))
        deviations = [columns[name]["std"] or 1 for name in NAMES]
        self.register_buffer("deviation", torch.tensor(deviations))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return normalized rows (batch, columns)."""
        return (rows - self.mean) / self.deviation


def build_model(units: int = 64) -> nn.Module:
    """Return a classifier that takes raw rows and returns logits."""
    hidden = nn.Linear(len(NAMES), units)
    return nn.Sequential(Normalization(), hidden, nn.ReLU(), nn.Linear(units, len(CLASSES)))


def training_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features (rows, columns) and classes (rows,) of the training split."""
    table = pq.read_table(DATA / "train")
    features = np.stack([table[name].to_numpy() for name in NAMES], axis=1, dtype=np.float32)
    classes = pc.index_in(table[SCHEMA["label"]["name"]], pa.array(CLASSES)).to_numpy()
    return torch.from_numpy(features), torch.from_numpy(classes.astype(np.int64))


def restore(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Resume from the newest checkpoint, which only the chief has, and return its epochs."""
    state = [None]
    folders = CHECKPOINTS.iterdir() if CHECKPOINTS.exists() else ()
    steps = [int(folder.name) for folder in folders if folder.name.isdecimal()]
    if dist.get_rank() == 0 and steps:
        path = CHECKPOINTS / str(max(steps)) / "state.pt"
        state = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["epochs"]


def save(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    """Write a checkpoint; one rename makes it visible, and it is in S3 seconds later."""
    partial = CHECKPOINTS / f".{epochs * STEPS}.tmp"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed here
    partial.mkdir(parents=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epochs}
    torch.save(state, partial / "state.pt")
    partial.rename(CHECKPOINTS / str(epochs * STEPS))
    folders = [folder for folder in CHECKPOINTS.iterdir() if folder.name.isdecimal()]
    for folder in sorted(folders, key=lambda folder: int(folder.name))[:-3]:
        shutil.rmtree(folder)


def main() -> None:
    """Train as one replica."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STOPPED))
    if int(os.environ.get("EXPECTED_GPUS", 0)) > 1:
        print("this program uses one GPU for each replica: set train_gpus to 1", flush=True)
        sys.exit(WRONG_CONFIGURATION)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # It reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build_model(**json.loads(os.environ["HYPERPARAMETERS"])).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    first = restore(model, optimizer)
    parallel, loss_of = DistributedDataParallel(model), nn.CrossEntropyLoss()
    features, classes = (rows.to(device) for rows in training_rows())
    share, saved = BATCH // replicas, time.monotonic()
    for epoch in range(first, EPOCHS):
        # The order depends on the epoch only, so that a resumed run sees the same batches.
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(epoch))
        mine = order[rank::replicas].to(device)
        total = torch.zeros((), device=device)
        for step in range(STEPS):
            batch = mine[step * share :][:share]
            loss = loss_of(parallel(features[batch]), classes[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        print(f"epoch {epoch + 1}/{EPOCHS} loss {total / STEPS / replicas:.6f}", flush=True)
        if rank == 0 and (time.monotonic() - saved >= SAVE_SECONDS or epoch + 1 == EPOCHS):
            save(model, optimizer, epoch + 1)
            saved = time.monotonic()
    if rank == 0:
        torch.save(model.state_dict(), OUTPUT / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        # With code 1 the run would fail for good; with this one a new attempt continues.
        print(f"another replica was lost: {error}", flush=True)
        os._exit(PEER_LOST)
