"""Refuses paths of a person's machine, which no pod can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kfp_tfjob.checks.finding import Finding


def local_paths(given: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each parameter that names a place outside of a store."""
    for name, value in given.items():
        if not value.strip().startswith("s3://"):
            yield Finding(
                f"{name} is a path on this machine, which a pod on the cluster cannot read",
                received=value,
                expected="an address s3://BUCKET/KEY",
                fix=f"copy it to the store and correct {name}; `kfp-tfjob run` takes a path",
                path=name,
            )
