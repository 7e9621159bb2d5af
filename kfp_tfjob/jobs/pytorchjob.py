"""Describes the PyTorchJob of the training operator; the chief is its Master.

Called through the list in `kinds.py`, and by `kfp-tfjob import`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .kind import TF_CONFIG, JobKind
from .objects import Object

_PORT = 23456  # the operator's default for the chief's port `pytorchjob-port`


class _PyTorchJob(JobKind):
    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return JobKind's variables and the variables of torch.distributed."""
        address, _, port = hosts["chief"][0].partition(":")
        rank = index if role == "chief" else len(hosts["chief"]) + index
        variables = {"MASTER_ADDR": address, "MASTER_PORT": port, "RANK": str(rank)}
        variables["WORLD_SIZE"] = str(sum(map(len, hosts.values())))
        return variables | super().environment(hosts, role, index)

    def sets(self, name: str, role: str, counts: Mapping[str, int]) -> list[Object]:
        """Return the variables with all Services' names; the operator sets only the Master's."""
        return self._topology(
            lambda pod_role: f"{name}-{self.label_of(pod_role)}-{{}}:{_PORT}", role, counts
        )


PYTORCHJOB = _PyTorchJob(
    name="PyTorchJob",
    plural="pytorchjobs",
    replicas_key="pytorchReplicaSpecs",
    roles={"chief": "Master", "worker": "Worker"},
    container="pytorch",
    operator="pytorchjob-controller",
    variables=frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", TF_CONFIG}),
    prefix="pytorchjob",
)
