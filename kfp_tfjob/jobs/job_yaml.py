"""Writes a job manifest as YAML for people."""

from __future__ import annotations

from typing import Any

import yaml

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options.secret_values import masked_job


class _Dumper(yaml.SafeDumper):
    """Repeats equal values, because anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(manifest: Object) -> str:
    """Return a manifest as YAML with masked secrets; equal manifests give equal bytes."""
    return yaml.dump(
        masked_job(manifest), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
