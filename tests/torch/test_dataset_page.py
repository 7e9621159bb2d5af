"""The PyTorch snippet of docs/dataset.md."""

from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from tests.docs.dataset_page import execute, prepare
from tests.environments import for_torch

pytestmark = pytest.mark.slow


def test_torch(store: Store, base: S3Address, tmp_path: Path) -> None:
    data = prepare(store, base, tmp_path)
    train = parquet.read_table(data / "train")
    expression = "[list(features.shape), str(features.dtype), int(classes.sum()), len(batches)]"
    shape, kind, ones, batches = execute("torch", expression, data, str(for_torch()))
    assert (shape, kind) == ([len(train), 2], "torch.float32")
    assert ones == pc.sum(pc.equal(train["income"], ">50K")).as_py()
    assert batches == -(-len(train) // 64)
