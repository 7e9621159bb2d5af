"""Validates a finished dataset against the champion's, and finds columns that reveal the label.

It reads the first rows of train and test back from the store, so the result is the same whether
this run wrote the dataset or an earlier one did. Called by prepare_data's `component.py`, after the
dataset is complete.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import short
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import DISTRIBUTIONS, SUSPICIOUS
from kfp_tfjob.storage.store import Store

from ..step import Step
from . import contracts, leaking_columns, reference, sample
from .dataset import Prepared
from .distributions import Distributions, DistributionsDocument, Drift, measure
from .leaking_columns import Suspicious
from .reference import Reference
from .sample import Sample

_MOST_NAMED = 10
_MOST_SUSPICIONS = 5
_MOST_METRICS, _LONGEST_NAME = 10, 60  # columns; Kubeflow Pipelines shows each metric
_TEST_ROWS = 20_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a dataset with the champion's.

    Attributes:
        changes: The differences that make the two models incomparable.
        beyond: The values beyond the limits of data_options.contract.
        gaps: The share of missing values before and now, by column.
        drift: How far each column has moved.
        label: How far the label has moved; None if that is not known.
        now: Sampled rows of train and test over the bins of the champion's data, as in
            distributions.json; None if its bins are not known.
        obstacle: Why there is no drift; empty if there is.
    """

    reference: Reference
    changes: list[Problem] = field(default_factory=list)
    beyond: list[Problem] = field(default_factory=list)
    gaps: dict[str, tuple[float, float]] = field(default_factory=dict)
    drift: dict[str, Drift] = field(default_factory=dict)
    label: Drift | None = None
    now: DistributionsDocument | None = None
    obstacle: str = ""


@dataclass(frozen=True)
class Validation:
    """The result of the validation.

    Attributes:
        distributions: Rows of train and test by bin, as in distributions.json; None for images.
        comparison: With the champion's dataset; None if there is none.
        alone: Why there is no comparison.
        suspicious: Columns that alone predict the label.
        max_psi: A larger PSI is a large change; None for no limit.
        errors: The problems that data_options.contract does not allow.
    """

    distributions: DistributionsDocument | None = None
    comparison: Comparison | None = None
    alone: str = ""
    suspicious: list[Suspicious] = field(default_factory=list)
    max_psi: float | None = None
    errors: list[Problem] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that the pipeline shows."""
        metrics: dict[str, float] = {"suspicious_columns": len(self.suspicious)}
        if self.comparison:
            metrics["champion_version"] = self.comparison.reference.version
            metrics["contract_problems"] = len(self.comparison.changes + self.comparison.beyond)
            drift = self.comparison.drift
            for name in sorted(drift, key=lambda name: -drift[name].psi)[:_MOST_METRICS]:
                metrics[f"psi/{short(name, _LONGEST_NAME)}"] = drift[name].psi
            if label := self.comparison.label:
                metrics["psi_label"] = label.psi
        return {name: float(value) for name, value in metrics.items()}


def validate(
    step: Step, prepared: Prepared, model_name: str, data_options: Mapping[str, Any]
) -> Validation:
    """Compare a dataset with the champion's, and look for columns that reveal the label."""
    options = parse(DataOptions, "data_options", data_options).contract
    base, schema = S3Address.parse(prepared.dataset_uri), prepared.schema
    champion = reference.find(step, model_name)
    rows, known_rows = _rows(step.store, base, schema, _learned(champion, schema))
    comparison = None
    if isinstance(champion, Reference):
        if champion.dataset_digest == prepared.dataset_digest:
            champion = f"the data is the same as that of {champion.name}"
        else:
            comparison = _compare(champion, prepared, known_rows, options)
    alone = "" if isinstance(champion, Reference) else str(champion)
    counts = reference.distributions(step.store, base)
    suspicious = leaking_columns.find(schema, rows["train"]) if rows else []
    validation = Validation(counts, comparison, alone, suspicious, options.max_psi)
    if suspicious:
        log.warning("SUSPICIOUS: %s", _suspicion(suspicious))
    if text := _sentences(prepared, suspicious):
        step.store.write(base / SUSPICIOUS, text.encode(), "text/plain")
    errors = _report(validation, options)
    if isinstance(champion, Problem) and "fail" in (options.changes, options.limits):
        errors.append(champion)  # a contract that cannot be checked is not kept
    return replace(validation, errors=errors)


def _learned(champion: Reference | str | Problem, schema: Schema) -> dict[str, ColumnType]:
    """Return the champion's encoding of columns whose type learns from strings, by name.

    A string that the champion did not know, such as a new word, counts as a change.
    """
    if not (isinstance(champion, Reference) and champion.schema.has_columns and schema.has_columns):
        return {}
    own = {feature.name: feature for feature in schema.encoding.features}
    return {
        feature.name: feature
        for feature in champion.schema.encoding.features
        if feature.learns_from_strings
        and type(own.get(feature.name)) is type(feature)
        and own[feature.name] != feature
    }


def _rows(
    store: Store,
    base: S3Address,
    schema: Schema,
    learned: Mapping[str, ColumnType],
) -> tuple[dict[str, Sample], dict[str, Sample]]:
    """Return rows of train and test, with the codes of the dataset and with the learned ones.

    There are none of a dataset that does not hold columns.

    Args:
        store: The store.
        base: The dataset.
        schema: Its schema.
        learned: As in `sample.encoded`.
    """
    if not schema.has_columns:
        return {}, {}
    try:
        tables = {
            "train": sample.table_of(store, base, schema, "train"),
            "test": sample.table_of(store, base, schema, "test", _TEST_ROWS),
        }
        rows = {split: sample.encoded(table, schema) for split, table in tables.items()}
        if not learned:
            return rows, rows
        return rows, {
            split: sample.encoded(table, schema, learned) for split, table in tables.items()
        }
    except DataError as error:  # who trains on the shards verifies them
        log.warning("the rows are not validated, because the shards cannot be read: %s", error)
        return {}, {}


def _compare(
    reference: Reference, prepared: Prepared, rows: Mapping[str, Sample], options: Contract
) -> Comparison:
    """Compare a dataset with the champion's.

    Args:
        reference: The champion's dataset.
        prepared: The dataset of this run.
        rows: Sampled rows of train and test; empty for images or if the shards cannot be read.
        options: The typed `data_options.contract`.
    """
    changes = contracts.changes(reference, prepared.schema)
    if not rows or not reference.schema.has_columns:
        label = _label_drift(reference, prepared, None)
        over_limit = list(_drifted(reference, options, {}, label, prepared.schema.label.name))
        if prepared.schema.has_columns:
            over_limit.append(_limit_problem(reference, "one of the two has rows without columns"))
        return Comparison(
            reference, changes, over_limit, label=label, obstacle="no columns to compare"
        )
    before, now = (contracts.gap_shares(data.statistics) for data in (reference, prepared))
    missing = {name: (before[name], now[name]) for name in now if name in before}
    over_limit = list(
        contracts.beyond_limits(reference, options, prepared.schema, rows["train"], missing)
    )
    drift: dict[str, Drift] = {}
    counts, obstacle = None, ""
    if reference.distributions is None:
        obstacle = f"{reference.name} has no {DISTRIBUTIONS}"
        if options.max_psi is not None:
            over_limit.append(_limit_problem(reference, obstacle))
    else:
        # PSI compares the same bins, so this run's rows are counted by the champion's.
        distributions = Distributions.of_file(reference.distributions, prepared.schema.encoding)
        for split, part in rows.items():
            distributions.add(split, part.rows, part.labels)
        counts = distributions.document()
        drift = _moved(reference.distributions, counts)
    label = _label_drift(reference, prepared, counts)
    # Dates drift by nature, so max_psi does not apply to them.
    stationary = {
        feature.name for feature in prepared.schema.features if not feature.column_type.moves_on
    }
    limited_drift = {name: moved for name, moved in drift.items() if name in stationary}
    over_limit += _drifted(reference, options, limited_drift, label, prepared.schema.label.name)
    return Comparison(reference, changes, over_limit, missing, drift, label, counts, obstacle)


def _limit_problem(reference: Reference, why: str) -> Problem:
    """Return the problem of limits that cannot be checked, which count as exceeded."""
    return Problem(
        f"cannot tell whether the data has drifted from that of {reference.name}",
        received=why,
        expected="rows of both datasets, to check the limits of data_options.contract",
        fix="publish a model with this version of the project; until then, set"
        ' data_options.contract.limits to "warn"',
    )


def _moved(before: DistributionsDocument, now: DistributionsDocument) -> dict[str, Drift]:
    """Return how far columns of train are apart, by name; missing values are a bin."""
    earlier_columns = before.by_name
    drift = {
        column.name: measure(earlier_columns[column.name].rows("train"), column.rows("train"))
        for column in now.columns
        if column.name in earlier_columns
    }
    return {name: distance for name, distance in drift.items() if distance}


def _label_drift(
    reference: Reference, prepared: Prepared, counts: DistributionsDocument | None
) -> Drift | None:
    """Return how far the label has moved; None if the tasks differ or the counts are gone."""
    old, new = reference.statistics.label.counts, prepared.statistics.label.counts
    if old and new:
        names = dict.fromkeys([*old["train"], *new["train"]])
        pairs = [(old["train"].get(name, 0), new["train"].get(name, 0)) for name in names]
        return measure(*zip(*pairs, strict=True))
    before = reference.distributions.label if reference.distributions else None
    if old or new or not counts or not counts.label or not before:
        return None
    return measure(before.rows("train"), counts.label.rows("train"))


def _drifted(
    reference: Reference,
    options: Contract,
    drift: Mapping[str, Drift],
    label: Drift | None,
    label_name: str,
) -> Iterator[Problem]:
    """Yield one problem for all columns whose drift exceeds max_psi, including the label."""
    nouns = {name: name for name in drift} | {label_name: f"the label {label_name}"}
    columns = {**drift, label_name: label} if label else drift
    limit = math.inf if options.max_psi is None else options.max_psi
    exceeding = [
        (item.psi, nouns[name], name)
        for name, item in columns.items()
        if item.psi > limit and not item.is_chance and name not in options.ignore
    ]
    if exceeding:
        exceeding.sort(reverse=True)
        listing = listed([f"{words} {value:.3g}" for value, words, _ in exceeding], _MOST_NAMED)
        names = listed(
            [json.dumps(name, ensure_ascii=False) for *_, name in exceeding], _MOST_NAMED
        )
        yield Problem(
            f"the data has drifted from that of {reference.name}",
            received=f"PSI of {listing}",
            expected=f"at most {limit:g} (data_options.contract.max_psi)",
            fix="look at these columns in data_report; if they are right, raise the limit, or add"
            f" {names} to data_options.contract.ignore",
        )


def _sentences(prepared: Prepared, suspicious: list[Suspicious]) -> str:
    """Return the suspicions about the data for every page with the verdict; empty without any."""
    sentences = [_suspicion(suspicious)] if suspicious else []
    first, *following = [*sentences, *(prepared.statistics.suspicions or ())] or [""]
    return listed(
        [first, *(text[:1].upper() + text[1:] for text in following)], _MOST_SUSPICIONS, ". "
    )


def _suspicion(suspicious: list[Suspicious]) -> str:
    """Describe columns that alone predict the label."""
    columns = listed(
        [f"{column.name!r} ({column.measure} {column.figure:.3f})" for column in suspicious],
        _MOST_NAMED,
    )
    names = json.dumps([column.name for column in suspicious[:_MOST_NAMED]], ensure_ascii=False)
    return (
        f"columns that alone predict the label: {columns}; drop those that are not known when it is"
        f" predicted, with data_options.drop={names}"
    )


def _report(validation: Validation, options: Contract) -> list[Problem]:
    """Log what was found; return the problems that the options turn into errors."""
    comparison = validation.comparison
    if comparison is None:
        log.info("%s", validation.alone)
        return []
    if comparison.obstacle:
        log.info("drift was not measured: %s", comparison.obstacle)
    errors: list[Problem] = []
    changes = comparison.changes
    if changes:
        changes = [*changes, contracts.consequence(comparison.reference)]
    for problems, policy in ((changes, options.changes), (comparison.beyond, options.limits)):
        if policy == "fail":
            errors += problems
        else:
            for problem in problems:
                log.warning("%s", problem)
    if not comparison.changes and not comparison.beyond:
        log.info("the data meets the contract of %s", comparison.reference.name)
    return errors
