"""The task that writes one shard of a group, and describes its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.appending import hash_lists
from kfp_tfjob.components.prepare_data.appending.summary import Summary
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.plan import plan_of
from kfp_tfjob.components.prepare_data.shards import document, write
from kfp_tfjob.components.prepare_data.sorted_rows import Sorted
from kfp_tfjob.storage.layout import shard_hashes


def shard(context: Context, item: list[Any]) -> list[int]:
    """Write one shard to the store.

    Args:
        context: Where everything is.
        item: The name of the job of the group, and the number of the shard in the group.

    Returns:
        Its rows and its bytes.
    """
    name, number = item
    for key in [key for key in context.cache if key[1] != name]:
        del context.cache[key]  # of a group before
    plan = plan_of(context, name)
    wanted = plan.shards[number]
    summary, found = Summary(plan.job, plan.label), [np.empty(0, hash_lists.ROW)]

    def see(part: Sorted) -> None:
        summary.add(wanted.split, part)
        found.append(hash_lists.rows_of(part.rows["hash"], wanted.split, part.labels))

    objects = write(context, plan, wanted, see)
    key, data = shard_hashes(wanted.stem), hash_lists.packed(np.concatenate(found))
    hashes = [key, len(data), context.store.write(plan.base / key, data)]
    body = {"objects": objects, "hashes": hashes, "summary": summary.to_plain()}
    context.exchange.write_plain(document(name, number), body)
    return [wanted.rows, wanted.rows * plan.encoder.record_bytes]
