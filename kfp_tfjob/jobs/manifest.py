"""Builds the job manifest of one attempt: a pure function of the spec and the run's identity.

Called by the launcher, and by the commands and checks that show or try a job before it exists.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import yaml

from kfp_tfjob.options.parameter_masking import masked_job

from .job_identity import Identity
from .kind import Replica
from .labels import CANCEL_GRACE_ANNOTATION, HASH_ANNOTATION, QUEUE_LABEL, job_labels
from .objects import Object
from .pod_template import PodTemplate
from .spec import JobSpec


def build_job(spec: JobSpec, identity: Identity) -> Object:
    """Return the job as a Kubernetes object; the same arguments give the same bytes."""
    labels = job_labels(
        run_id=identity.run_id,
        attempt=identity.attempt,
        task=identity.task,
        task_key=identity.task_key,
        model_name=spec.model_name,
    )
    queue = spec.pod.all.queue
    body = spec.kind.spec(
        [
            Replica(role, count, PodTemplate(spec, identity, role).render(labels))
            for role, count in spec.counts.items()
        ],
        spec.options.ttl_seconds,
    )
    metadata: Object = {
        "name": identity.job_name(spec.kind),
        "labels": (spec.pod.all.labels or {}) | ({QUEUE_LABEL: queue} if queue else {}) | labels,
        "annotations": {
            HASH_ANNOTATION: spec_hash({"spec": body}),
            CANCEL_GRACE_ANNOTATION: str(spec.options.cancel_grace_seconds),
        },
    }
    if identity.namespace:
        metadata["namespace"] = identity.namespace
    if identity.owner:
        metadata["ownerReferences"] = [dict(identity.owner)]
    return {
        "apiVersion": spec.kind.api_version,
        "kind": spec.kind.name,
        "metadata": metadata,
        "spec": body,
    }


def spec_hash(manifest: Object) -> str:
    """Return the SHA-256 of a job's spec, which does not depend on its name and owner."""
    text = json.dumps(manifest["spec"], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def to_yaml(manifest: Object) -> str:
    """Return a manifest as YAML with masked secrets; equal manifests give equal bytes."""
    return yaml.dump(
        masked_job(manifest), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )


class _Dumper(yaml.SafeDumper):
    """Repeats equal values, because anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
