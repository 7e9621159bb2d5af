"""Compares the header of the data with the data of the champion, before anything is prepared.

prepare_data compares everything, kinds and values included; a header shows in seconds which columns
are missing or new.
"""

from __future__ import annotations

import logging

from kfp_tfjob.checks.finding import Finding, Status
from kfp_tfjob.components.prepare_data import contracts, reference
from kfp_tfjob.components.prepare_data.source.resolve import Source, columns_of
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.champion import read_champion
from kfp_tfjob.storage.errors import StepError

log = logging.getLogger(__name__)


def check(
    step: Step, source: Source, model_name: str, data_label: str, options: DataOptions
) -> list[Finding]:
    """Return what differs from the data of the champion; nothing without a champion.

    It is a problem if data_options.contract.changes is `fail`, and a warning otherwise. A champion
    that cannot be read is left to prepare_data, which says why it compares nothing.

    Args:
        step: The run and its store.
        source: The files, whose header has no problem.
        model_name: As in the form.
        data_label: As in the form.
        options: The typed `data_options`.
    """
    try:
        champion = read_champion(step.store, step.layout, model_name) if model_name else None
        if champion is None:
            return []
        place = (step.store, step.layout, model_name, champion)
        found = reference.of_version(*place, counted=False)
        columns = columns_of(source, data_label, options)
        if found is None or columns is None:
            return []
        changes = contracts.of_header(found, columns.features, columns.label)
    except (StepError, ValueError, KeyError, TypeError) as error:
        log.info("the header is not compared with the champion's data: %s", error)
        return []
    if not changes:
        return []
    changes.append(contracts.consequence(found))
    refused = options.contract.changes == "fail"
    return [Finding.of(it, Status.PROBLEM if refused else Status.WARNING) for it in changes]
