"""Parses the run parameters into a typed job spec, and reports all problems together.

Kubeflow Pipelines delivers strings and dicts, and its form is untyped. Each process parses them
once, here, so later code neither checks nor converts. Called by `parameters.py` of preflight and by
the launcher's `engine.py` and `standalone.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.options import container_images
from kfp_tfjob.options.parameters import PARAMETERS, ROWS_PER_STEP
from kfp_tfjob.options.parse import bad_texts, parse, whole_numbers
from kfp_tfjob.options.pod import (
    NATIVE_RESOURCES,
    PodOptions,
    PodSettings,
    RoleSettings,
    Volume,
    bytes_of,
)
from kfp_tfjob.options.train import NPY, TrainOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT
from kfp_tfjob.supervisor.environment import VARIABLES

from . import kinds
from .kind import JobKind

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_HUGE_PAGES = re.compile(r"hugepages-(\d+[KMGT]i)")
_GPUS = re.compile(r"[^/]+/(?:gpu(?:\.shared)?|mig-.+)")
_WHOLE = re.compile(r"[1-9]\d*")
_STRINGS = (
    *("output_uri", "storage_endpoint", "storage_region", "storage_secret"),
    *("dataset_uri", "model_name", "model_entry", "code_uri"),
)
# Keys of `for_result` whose defaults follow from the replicas.
_BATCH_SIZE, _SYNC_BATCH_NORM = "train_batch_size", "train_options.sync_batch_norm"
# Variables that the manifest sets itself; a user's own value would break the contract of a replica.
RESERVED = frozenset(VARIABLES).union(*(kind.variables for kind in kinds.KINDS))

# A volume may be mounted below these, as at /etc/secrets, but not in their place.
_SYSTEM = tuple(map(PurePosixPath, ("/etc", "/dev", "/sys")))
# The job's own volumes; the kernel's files, over which no runtime mounts; the kubelet's files.
_PROTECTED = tuple(
    map(
        PurePosixPath,
        ("/kfp-tfjob", str(MOUNT.parent), "/dev/shm", "/proc")
        + ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
    )
)


@dataclass(frozen=True)
class JobSpec:
    """The checked and typed input of a job manifest, except the run's identity.

    Attributes:
        output_uri: The run parameter.
        storage_endpoint: The run parameter; if empty, the Secret or AWS decides.
        storage_region: The run parameter; if empty, the Secret or AWS decides.
        storage_secret: The name of the Secret with the store's keys.
        dataset_uri: The prepared dataset; empty before there is one.
        model_name: The model in the registry; here it only labels the job.
        model_entry: `module:function` that builds the model.
        code_uri: The copy of the user's code in S3; empty if the image has it.
        hyperparameters: The keyword arguments of that function.
        workers: Replicas in addition to the chief.
        gpus: GPUs per replica.
        epochs: Whole passes over the training rows.
        batch_size: Rows of one step, over all replicas.
        image: The image of the container `tensorflow`.
        tools_image: The image of `setup` and `uploader`.
        options: The dict train_options.
        pod: The dict pod.
        kind: The kind of the job.
        automatic: The keys of `for_result` whose values are defaults that follow from the replicas.
    """

    output_uri: str
    storage_endpoint: str
    storage_region: str
    storage_secret: str
    dataset_uri: str
    model_name: str
    model_entry: str
    code_uri: str
    hyperparameters: Mapping[str, Any]
    workers: int
    gpus: int
    epochs: int
    batch_size: int
    image: str
    tools_image: str
    options: TrainOptions
    pod: PodOptions
    kind: JobKind
    automatic: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def replicas(self) -> int:
        """Chief and workers together: the ranks of all-reduce."""
        return 1 + self.workers

    @property
    def counts(self) -> dict[str, int]:
        """The number of replicas of each role that has any."""
        counts = {"chief": 1, "worker": self.workers}
        counts |= {"ps": self.pod.ps.replicas, "evaluator": self.pod.evaluator.replicas}
        return {role: count for role, count in counts.items() if count}

    @property
    def ranks(self) -> int:
        """The parts into which a step divides its rows: the GPUs, or the replicas on CPUs."""
        return self.replicas * max(self.gpus, 1)

    @property
    def total_gpus(self) -> int:
        """GPUs of all replicas, including ps and evaluator."""
        return sum(count * self.gpus_of(role) for role, count in self.counts.items())

    @property
    def for_result(self) -> dict[str, Any]:
        """The values, by parameter, that affect the trained model, apart from data and code."""
        options = {f"train_options.{key}": value for key, value in self.options.for_result.items()}
        return options | {
            "model_entry": self.model_entry,
            "model_hyperparameters": dict(self.hyperparameters),
            "train_epochs": self.epochs,
            "train_batch_size": self.batch_size,
        }

    def gpus_of(self, role: str) -> int:
        """Return the GPUs of one replica of a role, for example `worker`."""
        extra = {"ps": self.pod.ps, "evaluator": self.pod.evaluator}.get(role)
        return extra.gpus if extra else self.gpus

    def image_of(self, role: str) -> str:
        """Return the image of a role's main container."""
        return getattr(self.pod, role).image or self.image

    @property
    def images(self) -> list[str]:
        """The different images of the main containers."""
        return list(dict.fromkeys(map(self.image_of, self.counts)))

    @classmethod
    def parse(cls, trained: Mapping[str, Any] = MappingProxyType({}), **parameters: Any) -> JobSpec:
        """Check and type the run parameters, and the values that preflight adds to them.

        Only here do `train_batch_size: 0` and `sync_batch_norm: auto` become a number and a
        boolean, so that the stored, compared and displayed values are what the replicas get.

        Args:
            trained: `for_result` of an attempt that the run continues; it decides these two, even
                if the run now has other replicas or another version has other defaults.
            **parameters: The run parameters by their names, and any other attribute of the class; a
                missing string is empty.

        Raises:
            ConfigurationError: Parameters are wrong; it lists every problem.
        """
        problems: list[Problem | str] = []

        def typed(group: type[Any], name: str) -> Any:
            try:
                return parse(group, name, parameters[name])
            except ConfigurationError as error:
                problems.extend(error.problems)
                return group()

        def whole_number(name: str) -> int:
            value, least = parameters[name], PARAMETERS[name].least
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and value % 1 == 0 and value >= least:
                return int(value)
            expected = f"a whole number, {least} or more"
            problems.append(
                Problem(f"{name} is not valid", repr(value), expected, f"correct {name}", name)
            )
            return least

        options = typed(TrainOptions, "train_options")
        spec = cls(
            **{name: str(parameters.get(name, "")).strip() for name in _STRINGS},
            hyperparameters=whole_numbers(parameters["model_hyperparameters"]),
            workers=whole_number("train_workers"),
            gpus=whole_number("train_gpus"),
            epochs=whole_number("train_epochs"),
            batch_size=whole_number("train_batch_size"),
            image=str(parameters["train_image"]).strip(),
            tools_image=parameters.get("tools_image", container_images.TOOLS),
            options=options,
            pod=typed(PodOptions, "pod"),
            kind=kinds.DEFAULT if options.job == "auto" else kinds.kind_named(options.job),
            automatic=frozenset(),
        )
        resolved = spec._resolved()._with_values_of(trained)
        if not problems:
            problems += resolved._wrong_batch()
        ConfigurationError.raise_if([*problems, *resolved._problems()])
        return resolved

    def continued(self, trained: Mapping[str, Any]) -> JobSpec:
        """Return the job of a run that continues an earlier attempt.

        The defaults that follow from the replicas are those of the attempt, even if the run now has
        other replicas or another version has other defaults.

        Args:
            trained: `for_result` of that attempt; empty if the run has not trained.

        Raises:
            ConfigurationError: The replicas cannot divide the attempt's batch.
        """
        spec = self._with_values_of(trained)
        ConfigurationError.raise_if(spec._wrong_batch())
        return spec

    def _resolved(self) -> JobSpec:
        """Return the job with the batch size and sync_batch_norm that its defaults stand for."""
        automatic: set[str] = set()
        batch, synchronizes = self.batch_size, self.options.sync_batch_norm
        if not batch:
            rows_per_rank = ROWS_PER_STEP if self.gpus else -(-ROWS_PER_STEP // self.replicas)
            batch = rows_per_rank * self.ranks
            automatic.add(_BATCH_SIZE)
        if synchronizes == "auto":
            # A user's own program does not read the option, so its value must not depend on ranks.
            synchronizes = self.options.synchronizes(1 if self.options.command else self.ranks)
            automatic.add(_SYNC_BATCH_NORM)
        options = self.options.model_copy(update={"sync_batch_norm": synchronizes})
        return replace(self, batch_size=batch, options=options, automatic=frozenset(automatic))

    def _with_values_of(self, trained: Mapping[str, Any]) -> JobSpec:
        """Return the job with an earlier attempt's values instead of its own defaults."""
        batch, options = self.batch_size, self.options
        if _BATCH_SIZE in self.automatic:
            batch = trained.get(_BATCH_SIZE) or batch
        if _SYNC_BATCH_NORM in self.automatic and _SYNC_BATCH_NORM in trained:
            update = {"sync_batch_norm": trained[_SYNC_BATCH_NORM]}
            options = options.model_copy(update=update)
        return replace(self, batch_size=batch, options=options)

    def _problems(self) -> Iterator[Problem | str]:
        yield from self._wrong_names()
        yield from self._wrong_model()
        for role, settings in self.pod.of_replicas.items():
            yield from self._wrong_pod(role, settings)

    def _wrong_names(self) -> Iterator[Problem | str]:
        addresses = {"output_uri": self.output_uri}
        addresses |= {"dataset_uri": self.dataset_uri} if self.dataset_uri else {}
        addresses |= {"code_uri": self.code_uri} if self.code_uri else {}
        for name, uri in addresses.items():
            try:
                S3Address.parse(uri, name)
            except StepError as error:
                yield from error.problems
        if not _OBJECT.fullmatch(self.storage_secret):
            yield Problem(
                "storage_secret is not the name of a Secret",
                received=repr(self.storage_secret),
                expected="lowercase letters, digits, - and .; an empty name makes a pod invalid",
                fix="name the Secret with the store's keys; it does not have to exist",
                path="storage_secret",
            )
        yield from container_images.reference_problems(
            self.image,
            "train_image is not an image reference",
            fix="name the image whose python3 has TensorFlow",
            path="train_image",
        )
        for role in self.kind.roles:
            if image := getattr(self.pod, role).image:
                yield from container_images.reference_problems(
                    image,
                    f"pod.{role}.image is not an image reference",
                    fix="name the image of this role, or remove the key to use train_image",
                    path=f"pod.{role}.image",
                )
        yield from container_images.reference_problems(
            self.tools_image,
            "the steps' image is not an image reference",
            fix=f"correct {container_images.TOOLS_VARIABLE}, or compile the pipeline with another"
            " image",
        )

    def _wrong_model(self) -> Iterator[Problem]:
        if not isinstance(self.hyperparameters, Mapping):
            yield Problem(
                "model_hyperparameters is not a dict",
                received=repr(self.hyperparameters),
                expected="a JSON object with the keyword arguments of the model function",
                fix="correct model_hyperparameters",
                path="model_hyperparameters",
            )
        else:
            yield from bad_texts("model_hyperparameters", self.hyperparameters)
            try:
                json.dumps(dict(self.hyperparameters), allow_nan=False)
            except (TypeError, ValueError) as error:
                yield Problem(
                    "model_hyperparameters is not JSON",
                    received=str(error),
                    expected="strings, finite numbers, booleans, null, lists and objects",
                    fix="write other values as strings, and convert them in the model function",
                    path="model_hyperparameters",
                )
        if not self.options.command and not _ENTRY.fullmatch(self.model_entry):
            yield Problem(
                "there is neither a model function nor a command",
                received=repr(self.model_entry),
                expected="module:function",
                fix="correct model_code, or set train_options.command to your own program",
                path="model_code",
            )
        for role in ("ps", "evaluator"):
            replicas = getattr(self.pod, role).replicas
            if replicas and role not in self.kind.roles:
                yield Problem(
                    f"a {self.kind.name} cannot have {role} replicas",
                    received=replicas,
                    expected=f"pods of {', '.join(self.kind.roles)} only",
                    fix=f"remove pod.{role}",
                    path=f"pod.{role}.replicas",
                    suggestion="0",
                )
            elif replicas and not self.options.command:
                yield Problem(
                    f"pod.{role}.replicas needs your own program",
                    received=replicas,
                    expected="0, because this project's trainer uses only chief and workers",
                    fix=f"set train_options.command, or remove pod.{role}",
                    path=f"pod.{role}.replicas",
                    suggestion="0",
                )
        if self.options.stage_data == NPY and not self.options.command:
            yield Problem(
                "train_options.stage_data: npy needs your own program",
                received=NPY,
                expected="true, because this project's trainer reads the shards itself",
                fix="set train_options.command, or remove train_options.stage_data",
                path="train_options.stage_data",
                suggestion="true",
            )

    def _wrong_batch(self) -> Iterator[Problem]:
        """Yield the problem of a batch size that does not divide; a default of 0 always does."""
        if self.options.command or self.batch_size % self.ranks == 0:
            return
        expected = (
            f"a multiple of {self.ranks} = (1 chief + {self.workers} workers)"
            f" x {max(self.gpus, 1)} {'GPUs' if self.gpus else 'CPU rank'}"
        )
        if _BATCH_SIZE in self.automatic:
            yield Problem(
                "the batch size with which this run began cannot be divided among its replicas now",
                received=f"train_batch_size {self.batch_size}",
                expected=expected,
                fix="continue with as many replicas and GPUs as before, or start a new run",
                path="train_workers",
            )
            return
        below = self.batch_size // self.ranks * self.ranks
        near = [str(size) for size in (below, below + self.ranks) if size]
        yield Problem(
            "train_batch_size cannot be divided evenly over all replicas",
            received=self.batch_size,
            expected=expected,
            fix=f"set train_batch_size to {' or '.join(near)}",
            path="train_batch_size",
            suggestion=near[0],
            name="batch-size",
        )

    def _wrong_pod(self, role: str, settings: PodSettings) -> Iterator[Problem]:
        for name in sorted(RESERVED & set(settings.env or {})):
            yield Problem(
                f"pod.{role}.env.{name} is set by the job itself",
                received=name,
                expected="a name that the job does not use itself",
                fix=f"remove pod.{role}.env.{name}",
                path=f"pod.{role}.env.{name}",
            )
        for name, amount in (settings.resources or {}).items():
            yield from self._wrong_resource(f"pod.{role}", name, amount)
        output = [settings.output_path] if isinstance(settings, RoleSettings) else []
        volumes = [volume.path for volume in self._volumes_of(role) or ()]
        paths = [*volumes, *filter(None, output)]
        for path in sorted(set(paths)):
            if paths.count(path) > 1 or is_protected(PurePosixPath(path)):
                key = "volumes" if path in volumes else "output_path"
                yield Problem(
                    f"pod.{role}.{key} cannot be mounted at {path}",
                    received=path,
                    expected="a path that no other volume has; not /etc, /dev or /sys, and not in"
                    f" {', '.join(map(str, _PROTECTED))}",
                    fix="choose another path",
                    path=f"pod.{role}.{key}",
                )

    def _wrong_resource(self, pod: str, name: str, amount: str) -> Iterator[Problem]:
        """Yield the problem of a name or an amount in `resources`; the API server checks neither.

        Args:
            pod: The settings, such as `pod.all`.
            name: The resource.
            amount: How much of it each replica requests.
        """
        path = f"{pod}.resources.{name}"
        page = _HUGE_PAGES.fullmatch(name)
        gpus = {self.pod.of(role).gpu_resource for role in self.counts}
        if field := NATIVE_RESOURCES.get(name):
            yield Problem(
                f"{pod}.resources cannot set {name}",
                received=f"{name}: {amount}",
                expected="a resource that has no key of its own",
                fix=f"move it to {pod}.{field}",
                path=path,
            )
        elif name in gpus or _GPUS.fullmatch(name):
            yield Problem(
                f"{pod}.resources cannot set GPUs, because the replicas wait for theirs",
                received=f"{name}: {amount}",
                expected="a resource other than GPUs",
                fix=f"remove it; set train_gpus, and {pod}.gpu_resource={name}",
                path=path,
            )
        elif not page and ("/" not in name or "kubernetes.io/" in name):
            yield Problem(
                f"{name} is not a resource that a pod can request",
                received=repr(name),
                expected="DOMAIN/NAME, such as rdma/ib, or hugepages-2Mi",
                fix="write its name as `kubectl describe node` shows it",
                path=path,
            )
        elif page and (not (size := bytes_of(amount)) or size % bytes_of(page[1])):
            yield Problem(
                f"{path} is not a number of whole pages",
                received=repr(amount),
                expected=f"a multiple of {page[1]}, for example {page[1]}",
                fix=f"correct {path}",
                path=path,
                suggestion=page[1],
            )
        elif not page and not _WHOLE.fullmatch(amount):
            yield Problem(
                f"{path} is not a whole number",
                received=repr(amount),
                expected="1 or more; Kubernetes does not divide such a resource",
                fix=f"correct {path}",
                path=path,
                suggestion="1",
            )

    def _volumes_of(self, role: str) -> tuple[Volume, ...] | None:
        """Return the volumes that `pod.<role>` declares; with an output path, all of its pods'.

        An output path must also differ from the paths of `pod.all`'s volumes.
        """
        settings = self.pod.of_replicas[role]
        is_mounted = isinstance(settings, RoleSettings) and settings.output_path
        return self.pod.of(role).volumes if is_mounted else settings.volumes


def is_protected(path: PurePosixPath) -> bool:
    """Return whether a container needs its own files at a path."""
    return path in _SYSTEM or any(path.is_relative_to(folder) for folder in _PROTECTED)
