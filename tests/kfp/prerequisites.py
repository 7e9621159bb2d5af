"""Everything that keeps the scenarios from running, at once and each with its fix.

`kfp-tfjob doctor` checks the cluster, the rights of the runs, the images, the back end and the
store. Here are only the things that a test needs and a run does not.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

from kubernetes import client
from kubernetes.config import ConfigException

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.pipelines.kubeflow.errors import ENDPOINT, UI_ENDPOINT
from tests.kfp import cluster
from tests.kfp.lab import POD
from tests.kfp.settings import BUCKET, REGISTRY, SECRET, Settings

_STEP_RESOURCES = ("all.cpu=50m", "evaluate.memory=2Gi", "publish.memory=2Gi")
# Verb, resource, API group.
_RIGHTS = (
    ("list", "workflows", "argoproj.io"),
    ("list", "pods", ""),
    ("delete", "pods", ""),
    ("get", "secrets", ""),
    ("create", "secrets", ""),
    ("deletecollection", "secrets", ""),
)


def compile_pipeline(settings: Settings, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile the pipeline with the pushed images, and requests that fit on a small node."""
    resources = [word for it in _STEP_RESOURCES for word in ("--step-resources", it)]
    options = ["--output", str(folder), "--registry", settings.registry]
    return command("compile", *options, *resources)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `kfp-tfjob` as a user does."""
    program = Path(sys.executable).parent / "kfp-tfjob"
    return subprocess.run([str(program), *words], capture_output=True, text=True)


def missing(settings: Settings, pipeline: Path, prefix: str) -> Iterator[str]:
    """Yield what is missing, a sentence with its fix each; `pipeline` may not exist."""
    if not settings.bucket:
        yield str(
            Problem(
                f"{BUCKET} is not set",
                expected="a bucket that the pods and this machine may read and write",
                fix=f"export {BUCKET}=my-bucket; everything below one prefix is deleted afterwards",
            )
        )
    if not settings.registry:
        yield str(
            Problem(
                f"{REGISTRY} is not set",
                expected="the registry to which `make images PUSH=1` has pushed the images",
                fix=f"make images PUSH=1 REGISTRY=..., and export {REGISTRY}=...",
            )
        )
    if settings.chromium and settings.ui and not _is_page(settings.ui):
        yield str(
            Problem(
                "the UI does not answer",
                received=settings.ui,
                expected="the page of Kubeflow Pipelines",
                fix=f"set {UI_ENDPOINT}, if {ENDPOINT} is the API",
            )
        )
    yield from _of_doctor(settings, pipeline, prefix)
    try:
        yield from _rights()
    except (ConfigException, client.ApiException, OSError):
        return  # doctor has said that the cluster cannot be reached


def _is_page(url: str) -> bool:
    try:
        with urlopen(url, timeout=10) as reply:
            return reply.headers.get_content_type() == "text/html"
    except OSError:
        return False


def _of_doctor(settings: Settings, pipeline: Path, prefix: str) -> Iterator[str]:
    words: list[str] = ["--json", "--secret", settings.secret]
    words += ["--set", f"pod={json.dumps(POD)}"]
    words += ["--workers", "0"]
    if settings.bucket:
        words += ["--output", f"s3://{settings.bucket}/{prefix}"]
    if pipeline.is_file():
        words += ["--pipeline", str(pipeline)]
    done = command("doctor", *words)
    if done.returncode not in (0, 1):
        yield f"`kfp-tfjob doctor` failed: {done.stderr.strip()}"
        return
    for finding in json.loads(done.stdout)["findings"]:
        without_images = finding["topic"] == "images" and not pipeline.is_file()
        lacking = finding["status"] in ("waits", "warning") and "Secret" in finding["what"]
        if (finding["status"] == "problem" or lacking) and not without_images:
            yield f"{finding['topic']}: {finding['what']}. Fix: {finding.get('fix', 'none')}."


def _rights() -> Iterator[str]:
    """Ask what this kubeconfig may do, beside what doctor does."""
    api = client.AuthorizationV1Api(cluster.connect())
    denied = []
    of_jobs = [("list", plural, group) for group, _, plural in cluster.kinds()]
    for verb, resource, group in (*_RIGHTS, *of_jobs):
        wanted = client.V1ResourceAttributes(
            namespace=cluster.namespace(), verb=verb, resource=resource, group=group
        )
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=wanted)
        review = client.V1SelfSubjectAccessReview(spec=spec)
        answer = api.create_self_subject_access_review(review, _request_timeout=(5, 15))
        if not answer.status.allowed:
            denied.append(f"{verb} {resource}")
    if denied:
        yield str(
            Problem(
                f"your kubeconfig may not {', '.join(denied)} in namespace {cluster.namespace()}",
                expected="the rights of an editor of that namespace, and to read its Secrets: one"
                f" scenario copies {SECRET}, two delete pods",
                fix="use a kubeconfig with these rights",
            )
        )


def shown(problems: Sequence[str]) -> str:
    lines = [f"{number}. {problem}" for number, problem in enumerate(problems, 1)]
    return "\n".join([f"test-kfp cannot run here, for {len(problems)} reasons:", *lines])
