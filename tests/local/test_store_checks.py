"""What preflight and doctor find out about a store before a run: races, and room for a bucket."""

import threading

import pytest

from kfp_tfjob.checks.finding import Finding, Status
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.common.errors import ConfigurationError, NoRoomError, StoreUnavailableError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from tests.faults.proxy import (
    Exchange,
    Fault,
    FaultProxy,
    ignore_conditions,
    look_first_write_later,
    refuse,
)
from tests.faults.world import EVER
from tests.problems import problem_of
from tests.stores import known

PLANTED = "Planted 1.0"
SHORT = Patience(seconds=0.2, silence=0.5)


def by_status(store: Store, prefix: S3Address) -> dict[Status, Finding]:
    return {finding.status: finding for finding in check_store(store, prefix, prefix)}


def test_the_store_of_this_session_is_as_it_is_known(store: Store, base: S3Address) -> None:
    assert by_status(store, base).keys() <= known.current().statuses


def test_a_store_that_loses_a_race_is_reported(proxy: FaultProxy, base: S3Address) -> None:
    store = Store(proxy.endpoint)
    proxy.store_name = PLANTED
    proxy.faults = [Fault(look_first_write_later(0.1), times=EVER)]
    findings = by_status(store, base)
    assert findings.keys() == {Status.OK, Status.WARNING}
    warned = findings[Status.WARNING]
    assert PLANTED in str(warned.received) and "of 8" in str(warned.received)
    assert "two runs" in warned.what and warned.fix
    assert "conditional" not in findings[Status.OK].what
    assert list(store.list(base)) == []


def test_a_store_that_ignores_the_condition_is_refused_by_its_name(
    proxy: FaultProxy, base: S3Address
) -> None:
    proxy.store_name = PLANTED
    proxy.faults = [Fault(ignore_conditions, times=EVER)]
    problem = problem_of(check_store, Store(proxy.endpoint), base, base)
    assert PLANTED in problem.received and "If-None-Match: *" in problem.received
    assert problem_of(check_store, Store(proxy.endpoint), base, base, kind=ConfigurationError)


def hang(exchange: Exchange) -> bool:
    """The store takes 30 s for its answer, as SeaweedFS 4.34 does; clients end that wait."""
    threading.Event().wait(5)
    return exchange.answer(500, "InternalError")


@pytest.mark.parametrize("action", [refuse(500, "InternalError"), hang])
@pytest.mark.parametrize(
    ("name", "has_remedy"), [("SeaweedFS 8000GB 4.34", True), ("envoy", True), ("MinIO", False)]
)
def test_a_store_without_room_for_the_bucket_has_a_remedy(
    proxy: FaultProxy, base: S3Address, action, name: str, has_remedy: bool
) -> None:
    proxy.store_name = name
    proxy.faults = [Fault(action, "PUT", times=EVER)]
    store = Store(proxy.endpoint, patience=SHORT)
    kind = NoRoomError if has_remedy else StoreUnavailableError
    problem = problem_of(check_store, store, base, base, kind=kind)
    assert ("-volume.max" in problem.fix and "s3://mlpipeline/" in problem.fix) == has_remedy
    if has_remedy:
        assert name in problem.received


def test_any_write_that_is_answered_with_500_has_the_remedy(
    proxy: FaultProxy, base: S3Address
) -> None:
    store = Store(proxy.endpoint, patience=SHORT)
    proxy.store_name = "SeaweedFS 8000GB 4.48"
    proxy.faults = [Fault(refuse(500, "InternalError"), ".*", times=EVER)]
    problem = problem_of(store.write, base / "x", b"1", kind=NoRoomError)
    assert "InternalError" in problem.received and "-volume.max" in problem.fix
    problem = problem_of(store.read, base / "x", kind=StoreUnavailableError)
    assert "-volume.max" not in problem.fix
