"""Reads the job's replicas, and this replica's role among them, from a variable.

The training operator writes TF_CONFIG. For other operators, the job manifest has TOPOLOGY: how many
replicas of each role there are, and where. The command gets both forms that programs read:
TF_CONFIG, and the variables of torch.distributed and torchrun. Called by `supervise.py`, and by the
trainer's `config.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from .environment import Refused
from .flags import REFERENCE, flags

_TRAINS = ("chief", "worker")
_TF_CONFIG, _TOPOLOGY, _LOOK = "TF_CONFIG", "TOPOLOGY", "check the TFJob"
# The variables that are known only once a replica runs, and that commands refer to.
_RANK_REFERENCE = re.compile(r"\$\((RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\)")
_ALONE = ("127.0.0.1", 29500)  # the port that torch uses by default


@dataclass(frozen=True)
class Topology:
    """The job's replicas and their addresses, and which of them this process is.

    Attributes:
        kind: This replica's type, for example `worker`; a replica without TF_CONFIG is the
            chief.
        index: This replica's number within its type, from 0.
        members: The addresses of the replicas, by their type; empty without TF_CONFIG.
    """

    kind: str = "chief"
    index: int = 0
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Topology:
        """Read TF_CONFIG or TOPOLOGY, and compare it with EXPECTED_REPLICAS.

        Raises:
            Refused: It is damaged, does not contain this replica, has two replicas at one address,
                names a replica type that TensorFlow 2 does not have, or differs from
                EXPECTED_REPLICAS in its number of replicas.
        """
        cluster = cls()
        if variables.get(_TF_CONFIG):  # a local run sets it for every kind of job
            cluster = cls._of_tf_config(variables[_TF_CONFIG])
        elif variables.get(_TOPOLOGY):
            cluster = cls._of_topology(variables)
        if "master" in cluster.members or cluster.kind == "master":
            raise Refused(
                _TF_CONFIG,
                "TF_CONFIG has a replica of the type Master, which TensorFlow 2 does not support",
                fix="call it Chief in the job manifest",
            )
        expected = variables.get("EXPECTED_REPLICAS", "")
        if expected and expected != str(cluster.size):
            chiefs, workers = (len(cluster.members.get(kind, ())) for kind in _TRAINS)
            raise Refused(
                _TF_CONFIG,
                f"TF_CONFIG names {chiefs} chief and {workers} workers"
                if cluster.members
                else "there is no TF_CONFIG, so this replica is alone",
                expected=f"{expected} replicas (EXPECTED_REPLICAS)",
                fix=_LOOK
                + ": the training operator did not set up the replicas in the job manifest",
            )
        wrong = cluster._contradiction()
        if wrong:
            raise Refused(
                _TF_CONFIG,
                f"TF_CONFIG is not valid: {wrong}",
                str(variables.get(_TF_CONFIG) or variables.get(_TOPOLOGY))[:500],
                "a different address, name:port, for each replica, including this one",
                _LOOK,
            )
        return cluster

    @classmethod
    def _of_tf_config(cls, text: str) -> Topology:
        try:
            config = json.loads(text)
            members = config["cluster"].items()
            return cls(
                str(config["task"]["type"]).lower(),
                int(config["task"]["index"]),
                {str(name).lower(): [str(host) for host in hosts] for name, hosts in members},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(
                _TF_CONFIG,
                f"TF_CONFIG is not valid: {type(error).__name__}: {error}",
                text[:500],
                "a JSON object with cluster and task",
                _LOOK,
            ) from None

    @classmethod
    def _of_topology(cls, variables: Mapping[str, str]) -> Topology:
        """Read TOPOLOGY and REPLICA_INDEX; one replica alone needs no addresses."""
        value = variables[_TOPOLOGY]
        try:
            topology = json.loads(value)
            members = {
                str(role): [str(host).format(index) for index in range(count)]
                for role, (count, host) in topology["replicas"].items()
            }
            if sum(map(len, members.values())) < 2:
                return cls()
            return cls(str(topology["role"]), int(variables["REPLICA_INDEX"]), members)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Refused(
                _TOPOLOGY,
                f"TOPOLOGY is not valid: {type(error).__name__}: {error}",
                value[:500],
                "what the job manifest sets, and REPLICA_INDEX",
                "do not set these variables yourself",
            ) from None

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which programs of TensorFlow and of torch find the other replicas."""
        variables = self.tf_config
        if self.kind in _TRAINS:
            host, port = self.chief_address if self.members else _ALONE
            variables.update(MASTER_ADDR=host, MASTER_PORT=str(port))
            variables.update(RANK=str(self.rank), WORLD_SIZE=str(self.size))
        if self.kind in _TRAINS and self.size > 1:
            # A bare torchrun would train on each replica alone; its flags override these.
            variables.update(PET_MASTER_ADDR=host, PET_MASTER_PORT=str(port))
            variables.update(PET_NODE_RANK=str(self.rank), PET_NNODES=str(self.size))
        return variables

    @property
    def tf_config(self) -> dict[str, str]:
        """The variable TF_CONFIG; empty for one replica alone."""
        if not self.members:
            return {}
        task = {"type": self.kind, "index": self.index}
        config = {"cluster": self.members, "task": task, "environment": "cloud"}
        return {_TF_CONFIG: json.dumps(config)}

    @property
    def without_chief(self) -> Topology:
        """The same replicas with the chief as worker 0, as a job of workers alone has them.

        It is for the user's program only: the chief still writes the output and ends the job.
        """
        chiefs = self.members.get("chief", ())
        if not chiefs:
            return self
        workers = [*chiefs, *self.members.get("worker", ())]
        other_members = {kind: hosts for kind, hosts in self.members.items() if kind not in _TRAINS}
        index = self.rank if self.kind in _TRAINS else self.index
        kind = "worker" if self.kind in _TRAINS else self.kind
        return Topology(kind, index, {"worker": workers, **other_members})

    def without_proxy(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the variable with which gRPC reaches the other replicas without a proxy.

        Through a proxy, TensorFlow would wait for them forever. gRPC reads this variable instead of
        no_proxy.
        """
        if not any(variables.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
            return {}
        excluded = variables.get("no_grpc_proxy") or variables.get("no_proxy") or ""
        addresses = [address for members in self.members.values() for address in members]
        hosts = [address.rpartition(":")[0] for address in addresses]
        return {"no_grpc_proxy": ",".join(filter(None, [excluded, *hosts]))}

    def _contradiction(self) -> str:
        """Return why this cluster cannot work, or ""; replicas would wait until the deadline."""
        if not self.members:
            return ""
        count = len(self.members.get(self.kind, ()))
        # Estimators keep the evaluator out of the cluster; so do programs modelled on them.
        is_outside = self.kind == "evaluator" and not count
        if not is_outside and not 0 <= self.index < count:
            return f"there is no {self.kind} {self.index} in it"
        seen_addresses = set()
        for address in (address for hosts in self.members.values() for address in hosts):
            if address in seen_addresses:
                return f"{address} is the address of two replicas"
            seen_addresses.add(address)
            host, port = split(address)
            if not host or not port.isdecimal():
                return f"{address} is not an address"
        return ""

    @property
    def size(self) -> int:
        """Chief and workers together."""
        return sum(len(self.members.get(kind, ())) for kind in _TRAINS) if self.members else 1

    @property
    def name(self) -> str:
        """This replica, for example `worker 1`."""
        return _name(self.kind, self.index)

    @property
    def rank(self) -> int:
        """The number of this replica among chief and workers, from 0."""
        before = 0 if self.kind == "chief" else len(self.members.get("chief", ()))
        return before + self.index

    @property
    def chief_address(self) -> tuple[str, int]:
        """Host and port of the replica with rank 0; no host without TF_CONFIG."""
        first = next((hosts[0] for kind in _TRAINS if (hosts := self.members.get(kind))), ":0")
        host, port = split(first)
        return host, int(port)

    @property
    def writes(self) -> bool:
        """Whether this replica writes the output: the chief, or without one the first worker."""
        first_worker = (self.kind, self.index) == ("worker", 0)
        return self.kind == "chief" or (first_worker and "chief" not in self.members)

    @property
    def peers(self) -> dict[str, str]:
        """The other replicas that train, for example {"worker 1": "host:port"}."""
        return {
            _name(kind, index): address
            for kind in _TRAINS
            for index, address in enumerate(self.members.get(kind, ()))
            if (kind, index) != (self.kind, self.index)
        }


def expand(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return a command with this replica's rank, the chief's address and the flags filled in.

    Kubernetes expands `$(RANK)` only where an operator declares RANK in the container, which only
    the operator of PyTorchJobs does.
    """

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1], match[0])

    arguments = []
    for element in command:
        if element == REFERENCE:
            arguments += flags(json.loads(variables.get("HYPERPARAMETERS") or "{}"))
        else:
            arguments.append(_RANK_REFERENCE.sub(value, element))
    return arguments


def split(address: str) -> tuple[str, str]:
    """Return host and port of, for example, `name:2222` or `[::1]:2222`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _name(kind: str, index: int) -> str:
    return kind if kind == "chief" else f"{kind} {index}"
