"""Turns the files of data_uri into a finished dataset in the store.

1. The dataset's name depends on data, label and options; an existing dataset is reused.
2. The source is cut into parts. Each is read block by block: rows are checked, hashed and written
   to buckets by their hashes, and labels are counted. All parts together determine the task, and
   whether every split has enough rows.
3. The buckets of all parts are gathered into shards, which are sorted, described, encoded and
   stored one by one. Then schema.json, statistics.json and, last, manifest.json are written.

Called by `component.py`.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectNotFoundError,
    Problem,
    Problems,
    StepError,
)
from kfp_tfjob.common.formatting import counted, listed, sized
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.no_data import data_problems
from kfp_tfjob.options.parse import parse
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.registry.prune_runs import use_dataset
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import WORK

from ..step import Step
from . import dataset, row_requirements, scan
from .bucket_folder import BucketPrefix
from .dataset import Prepared
from .executors.executor import Context, Executor
from .executors.processes import Processes
from .executors.worker_count import worker_count
from .images.image_list import with_images
from .source.digest import source_digest as digest_of
from .source.files import Source
from .source.readers.byte_range import BLOCK
from .source.readers.open_table import PART_BYTES
from .source.resolve import check_header, list_source
from .stop_signal import exit_on_sigterm

_LARGE = 1 << 30  # bytes of a source whose rows do not go to the disk of a node
_GROWTH = 3  # bytes of rows in buckets for each byte of the source; few columns or packed text

log = logging.getLogger(__name__)


def run(
    step: Step,
    data_uri: str,
    data_label: str,
    data_options: Mapping[str, Any],
    source_digest: str = "",
    block: int = BLOCK,
    part: int = PART_BYTES,
    workers: int = 0,
    cores: int = 0,
) -> Prepared:
    """Prepare a dataset, or reuse a finished one.

    Args:
        step: The run and its store.
        data_uri: One file or a folder, in S3 or on this machine.
        data_label: The label column.
        data_options: The keys of `options.DataOptions`.
        source_digest: The digest from preflight; empty to accept the source as it is.
        block: Bytes of a CSV to parse at a time; it does not affect the result.
        part: Bytes of the source that a task reads; it does not affect the result.
        workers: How many tasks run at a time; 0 to choose by cores, memory and parts.
        cores: The cores that the pod requests; 0 if they are unknown.

    Raises:
        ConfigurationError: The options are wrong.
        DataError: The source is missing, changed since preflight, does not parse, or has too few
            rows for three splits.
    """
    options, source = _checked(step, data_uri, data_label, data_options, bool(source_digest))
    source_digest = _unchanged(source, source_digest)
    digest = options.dataset_digest(source_digest, data_label)
    base = step.layout.dataset(digest)
    work = base / WORK / step.run_id  # no other run clears it
    use_dataset(step.store, step.layout, digest, step.run_id)
    if prepared := dataset.find(step.store, base):
        log.info("dataset %s already exists and is reused", base)
        BucketPrefix(step.store, work).clear()  # this run's step was killed at its end
    else:
        files, size = counted(len(source.files), "file"), source.size / 1e6
        log.info("preparing %s from %s, %.1f MB", base, files, size)
        if source.unread:  # such as a table with another ending
            log.info(
                "not read, because of their endings: %s",
                listed([file.name for file in source.unread], 10),
            )
        with exit_on_sigterm(), TemporaryDirectory(prefix="prepare-data-") as folder:
            bucket_location = str(work) if options.dask else _bucket_location(source, work, folder)
            store = step.store
            context = Context(bucket_location, store.endpoint, store.region, opened=store)
            executor = _executor(context, options, source, part, workers, cores)
            prepared = _prepare(executor, source, data_label, options, base, block, part)
        rows = ", ".join(f"{number:,} in {split}" for split, number in prepared.rows.items())
        log.info("dataset %s is complete: rows: %s", base, rows)
    for warning in prepared.statistics.warnings:
        log.warning("%s", warning)
    return prepared


def without_data(data_label: str, data_options: Mapping[str, Any]) -> str:
    """Return the report of a run without data: the step runs, because later ones need its outputs.

    Raises:
        ConfigurationError: The other parameters describe data.
    """
    parameters = {"data_uri": "", "data_label": data_label, "data_options": data_options}
    ConfigurationError.raise_if(data_problems(parameters))
    log.info("no data: data_uri is empty, so there is no dataset")
    return fill("components/prepare_data/no_data.html.j2", title="No data")


def _prepare(
    executor: Executor,
    source: Source,
    data_label: str,
    options: DataOptions,
    base: S3Address,
    block: int,
    part: int,
) -> Prepared:
    """Read the source and write the dataset; close the executor."""
    try:
        source_scan = scan.read(source, data_label, options, executor, block, part)
        done = dataset.write(base, source_scan, row_requirements.decide(source_scan))
        executor.context.buckets.clear()
        return done
    except DataError as error:
        executor.close()  # nothing is written from now on
        executor.context.buckets.clear()
        # Another task of this run may have finished the same dataset, and cleared its prefix.
        is_lost = isinstance(error, ObjectNotFoundError)
        if is_lost and (finished := dataset.find(executor.context.store, base)):
            return finished
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StepError(
            Problem(
                "the local disk is full",
                received=str(error),
                expected=f"up to {sized(source.size * _GROWTH)} for the rows of"
                f" {sized(source.size)} of data, and 128 MB for each worker",
                fix="set TMPDIR to a larger disk, or choose nodes that have one with"
                " pod.prepare.node_selector",
            )
        ) from error
    finally:
        executor.close()


def _bucket_location(source: Source, work: S3Address, folder: str) -> str:
    """Return where tasks write bucket files: a local folder, or an address in the store.

    It is the store if local disk would not do, and for a large source in the store, because the
    disk of a node belongs to other pods, too.
    """
    free_bytes = shutil.disk_usage(folder).free
    in_store = any(isinstance(file.location, S3Address) for file in source.files)
    if (in_store and source.size >= _LARGE) or source.size * _GROWTH > free_bytes:
        return str(work)
    return folder


def _executor(
    context: Context, options: DataOptions, source: Source, part: int, workers: int, cores: int
) -> Executor:
    """Return the executor: on Dask, or several workers if there are cores and work for them."""
    if options.dask:
        from .executors.distributed import Distributed

        return Distributed(context, options.dask)
    parts = -(-source.size // part)
    count = min(workers, parts)
    if not workers:
        chosen = worker_count(parts, cores)
        count = chosen.workers
        if count < parts:
            log.info("%s, because %s", counted(count, "worker"), chosen.limit)
    return Processes(context, count) if count > 1 else Executor(context)


def _checked(
    step: Step, data_uri: str, data_label: str, data_options: Mapping[str, Any], by_preflight: bool
) -> tuple[DataOptions, Source]:
    """Return the typed options and the files, and check the header if no preflight did."""
    wrong = Problems()
    options = wrong.of(lambda: parse(DataOptions, "data_options", data_options))
    try:
        source = list_source(step.store, data_uri, options)
        source = with_images(source, data_label, options) if options else source
    except DataError as error:
        ConfigurationError.raise_if([*wrong, *error.problems] if wrong else [])
        raise
    if wrong or not options:
        raise ConfigurationError(*wrong)
    if not by_preflight:
        DataError.raise_if(check_header(source, data_label, options))
    return options, source


def _unchanged(source: Source, expected: str) -> str:
    digest = digest_of(source)
    if expected and digest != expected:
        subject, where = "the data", "data_uri"
        if source.reader and not source.reader.in_image:
            subject += " or the code of data_options.reader"
            where += " or to the folder of the reader's code, not even this run's log"
        raise DataError(
            Problem(
                f"{subject} has changed since preflight checked it",
                received=f"source_digest {digest}",
                expected=f"source_digest {expected}",
                fix=f"let nothing write to {where}, then start a new run",
            )
        )
    return digest
