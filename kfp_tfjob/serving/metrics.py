"""The server's Prometheus metrics, at /metrics together with kserve's.

All have the label `model_name`. A rate of requests is
`sum(rate(kfp_tfjob_requests_total{model_name="digits"}[1m]))`. Called by the follower, the limits,
the sampler and `protocol.py`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

# Buckets of the latency, from one row of a small model to a request with many rows.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_REQUESTS = Counter(
    "kfp_tfjob_requests",
    "Prediction requests, by protocol (v1, v2) and status",
    ["model_name", "protocol", "code"],
)
_LATENCY = Histogram(
    "kfp_tfjob_request_seconds",
    "From the first byte of a prediction request to the last byte of its response",
    ["model_name", "protocol"],
    buckets=_SECONDS,
)
_ROWS = Counter("kfp_tfjob_rows", "Rows predicted", ["model_name"])
_CHAMPION = Gauge("kfp_tfjob_champion_number", "The champion in use", ["model_name"])
_VERSION = Gauge("kfp_tfjob_model_version", "The version of that champion", ["model_name"])
_SWITCHES = Counter(
    "kfp_tfjob_champion_switches", "Switches from one champion to another", ["model_name"]
)
_REFUSED = Gauge(
    "kfp_tfjob_champion_refused",
    "The newest champion, if it cannot be verified or loaded; 0 if it is in use",
    ["model_name"],
)
_REACHED = Gauge(
    "kfp_tfjob_store_reached_timestamp_seconds",
    "When the newest champion was last read from the store",
    ["model_name"],
)
_SAMPLED = Counter("kfp_tfjob_sampled_rows", "Rows of requests stored as samples", ["model_name"])


@dataclass(frozen=True)
class Metrics:
    """One model's metrics."""

    model_name: str

    def answered(self, protocol: str, code: int | str, seconds: float) -> None:
        """Count a request."""
        _REQUESTS.labels(self.model_name, protocol, str(code)).inc()
        _LATENCY.labels(self.model_name, protocol).observe(seconds)

    def predicted(self, rows: int) -> None:
        """Count predicted rows."""
        _ROWS.labels(self.model_name).inc(rows)

    def answers(self, number: int, version: int, switched: bool) -> None:
        """Set the champion in use; `switched` tells whether it replaced another one."""
        _CHAMPION.labels(self.model_name).set(number)
        _VERSION.labels(self.model_name).set(version)
        _SWITCHES.labels(self.model_name).inc(switched)
        self.refused(0)

    def refused(self, number: int) -> None:
        """Set the number of the rejected champion; 0 without one."""
        _REFUSED.labels(self.model_name).set(number)

    def reached(self) -> None:
        """Set the time of the last successful read from the store to now."""
        _REACHED.labels(self.model_name).set_to_current_time()

    def sampled(self, rows: int) -> None:
        """Count the rows of a stored sample."""
        _SAMPLED.labels(self.model_name).inc(rows)
