"""What service accounts have asked of the API server, from its audit log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Accounts of pods only; the controllers of Kubernetes are accounts of kube-system.
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    userGroups: ["system:serviceaccounts:kube-system"]
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
  - level: None
"""


class Call(NamedTuple):
    """A kind of call, as a rule of a Role grants it."""

    group: str
    resource: str
    verb: str


def calls(log: Path, namespace: str, account: str) -> Iterator[tuple[Call, bool]]:
    """Yield the calls of an account on resources, and whether its rights allowed each."""
    with log.open() as lines:
        for line in lines:
            event = json.loads(line)
            user = event["user"]["username"]
            if "objectRef" in event and user == f"system:serviceaccount:{namespace}:{account}":
                at = event["objectRef"]
                parts = (at.get("resource", ""), at.get("subresource", ""))
                call = Call(at.get("apiGroup", ""), "/".join(filter(None, parts)), event["verb"])
                yield call, event["annotations"]["authorization.k8s.io/decision"] == "allow"
