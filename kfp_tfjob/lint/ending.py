"""Defines rules about the end of a job: no end, a hidden failure, or leftovers."""

from collections.abc import Iterator

from kfp_tfjob.jobs.labels import POD_ANNOTATIONS, QUEUE_LABEL
from kfp_tfjob.lint.job import DECIDERS, Job, mapping
from kfp_tfjob.lint.rule import Found, error, warning
from kfp_tfjob.storage.formatting import counted


@error(
    "make it a native sidecar: under initContainers with restartPolicy: Always (Kubernetes 1.29);"
    " it gets SIGTERM when the trainer has ended, and its exit code does not count"
)
def second_container(job: Job) -> Iterator[Found]:
    """The phase of the pod decides, not the exit code of the trainer.

    A second container that keeps running keeps a finished or failed job Running forever; one
    that fails makes a successful job Failed.
    """
    for replica in job.replicas:
        if len(replica.containers) > 1:
            names = " and ".join(container.name or "(no name)" for container in replica.containers)
            path = (*replica.pod_path, "containers")
            yield Found(path, f"{names} run side by side")


@error("use Never with a launcher that starts a new job, or OnFailure with a backoffLimit")
def always(job: Job) -> Iterator[Found]:
    """With Always, a container restarts even after it succeeded, so the job never succeeds."""
    for replica in job.of(*DECIDERS, "Worker"):
        if replica.policy == "Always":
            yield Found((*replica.path, "restartPolicy"), f"{replica.key} uses Always")


@error("use one restartPolicy for all types")
def mixed_policies(job: Job) -> Iterator[Found]:
    """While one type is restarting, a failure of a different type counts as restarting too.

    A type with Never is not restarted, and the job hangs forever.
    """
    same = {"Always": "OnFailure"}  # both are restarted in place
    kinds = {same.get(replica.policy, replica.policy) for replica in job.replicas}
    if len(kinds) > 1:
        policies = ", ".join(f"{replica.key} {replica.policy}" for replica in job.replicas)
        yield Found(job.at(), policies)


@warning("use Never and a launcher that starts a new job from the newest checkpoint")
def exit_code_policy(job: Job) -> Iterator[Found]:
    """Pods with exit codes from 128 up restart without limit and with empty volumes.

    Crashes and out-of-memory kills are among them. Codes 1 to 127 fail the job, including 42,
    which TensorFlow uses when it is preempted. A chief that restarts finds its finished workers
    gone.
    """
    for replica in job.replicas:
        if replica.policy == "ExitCode":
            yield Found((*replica.path, "restartPolicy"), f"{replica.key} uses ExitCode")


@error(
    "set runPolicy.backoffLimit: all containers of all pods count together, so for k restarts of"
    " the whole job, set k times their number, plus one"
)
def no_backoff_limit(job: Job) -> Iterator[Found]:
    """Without a limit, a program that cannot work restarts forever and keeps its GPUs."""
    if job.restarts and job.run_policy.get("backoffLimit") is None:
        number = sum(max(r.count, 0) * len(r.all_containers) for r in job.replicas)
        what = f"nothing limits the restarts of {counted(number, 'container')}"
        yield Found((*job.path, "spec", "runPolicy"), what)


@warning(
    "set activeDeadlineSeconds in the pod templates with restartPolicy Never; the kubelet enforces"
    " it there"
)
def idle_deadline(job: Job) -> Iterator[Found]:
    """The operator checks it only when something happens to a pod.

    A job that hangs produces no events, so it keeps running.
    """
    seconds = job.run_policy.get("activeDeadlineSeconds")
    without = [r for r in job.replicas if r.pod.get("activeDeadlineSeconds") is None]
    if isinstance(seconds, int) and without:
        path = (*job.path, "spec", "runPolicy", "activeDeadlineSeconds")
        yield Found(path, f"the deadline of {seconds} s is not enforced")


@warning("set activeDeadlineSeconds in the pod templates, with restartPolicy Never")
def no_deadline(job: Job) -> Iterator[Found]:
    """An all-reduce that lost a peer can hang forever and keep its GPUs."""
    if job.run_policy.get("activeDeadlineSeconds") is None:
        for replica in job.replicas:
            if replica.pod.get("activeDeadlineSeconds") is None:
                yield Found(replica.pod_path, f"{replica.key} may run forever")


@error("set runPolicy.cleanPodPolicy: Running")
def no_clean_pod_policy(job: Job) -> Iterator[Found]:
    """The default, None, deletes nothing.

    Parameter servers, evaluators and workers that wait or crash keep their GPUs after the job
    has ended.
    """
    if job.run_policy.get("cleanPodPolicy") is None:
        what = "cleanPodPolicy is not set"
        if not job.run_policy:
            what = "there is no runPolicy; the Kubeflow SDK cannot read a job without it"
        yield Found((*job.path, "spec", "runPolicy"), what)


@warning("use a gang scheduler, a queue, or a launcher that releases its nodes")
def no_gang(job: Job) -> Iterator[Found]:
    """The operator places pods one by one.

    Two jobs may each hold some of the GPUs and wait for the rest forever.
    """
    labels = mapping(mapping(job.body, "metadata"), "labels")
    asking = [replica for replica in job.replicas if replica.has_gpus]
    together = any(replica.pod.get("schedulerName") for replica in asking) or (
        QUEUE_LABEL in labels or job.run_policy.get("schedulingPolicy")
    )
    if sum(r.count for r in asking) > 1 and not together and not job.has_launcher:
        yield Found(job.at(), f"{sum(r.count for r in asking)} pods ask for GPUs one by one")


@warning("add the annotations to the pod template")
def annotations(job: Job) -> Iterator[Found]:
    """A pod that is evicted fails the whole job, whatever its restartPolicy.

    A proxy that Istio adds outlives the trainer, so the job never ends.
    """
    for replica in job.replicas:
        given = mapping(replica.metadata, "annotations")
        # Istio also accepts the label.
        given = mapping(replica.metadata, "labels") | given
        missing = {k: v for k, v in POD_ANNOTATIONS.items() if str(given.get(k)).lower() != v}
        if missing and replica.pod:
            names = ", ".join(f'{name}: "{value}"' for name, value in missing.items())
            path = (*replica.path, "template", "metadata")
            yield Found(path, f"{replica.key} lacks {names}")
