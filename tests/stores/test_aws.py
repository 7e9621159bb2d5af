"""Roles and policies on moto: its STS gives keys, and its IAM checks every request to its S3.

`make test-aws`. moto allows an action only if a policy of the role does; signatures are checked
too. It does not check KMS permissions.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from examples import digits
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.parts import OpenFile, PartsUpload
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, FileChangedError, Store
from tests.cluster.processes import Process, answers, end_marked, running
from tests.environments import ROOT, with_packages
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.world import EVER
from tests.local.aws import answer_xml
from tests.local.sidecar import RUN, Pod
from tests.ports import free_port

pytestmark = pytest.mark.slow

OUTPUT, DATA = S3Address("bucket", "team"), S3Address("data", "digits.csv")
NEVER = float("inf")
ROLE = "arn:aws:iam::123456789012:role/"
_ADMINISTRATOR = {"aws_access_key_id": "administrator", "aws_secret_access_key": "secret"}
_TRUST = {"Effect": "Allow", "Principal": {"Federated": "oidc"}}
_TRUST["Action"] = "sts:AssumeRoleWithWebIdentity"


class Moto:
    """moto's server as a process, with a bucket for output and one with the digits."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._folder, self.url = folder, f"http://127.0.0.1:{port}"
        python = with_packages("moto[server]==5.2.5")
        command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = Process("moto", command, folder, folder)

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(lambda: answers(f"{self.url}/moto-api/"), 300)
        s3 = self.client("s3")
        for address in (OUTPUT, DATA):
            s3.create_bucket(Bucket=address.bucket)
        digits.write(self._folder / "digits.csv")
        s3.upload_file(str(self._folder / "digits.csv"), DATA.bucket, DATA.key)

    def client(self, service: str):
        options = {"endpoint_url": self.url, "region_name": "us-east-1", **_ADMINISTRATOR}
        return boto3.client(service, **options)

    def enforce(self, unchecked: float = 0) -> None:
        """Check every request, after so many that are not checked."""
        url, text = f"{self.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        body = str(unchecked).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, text, method="POST"))

    def stop(self) -> None:
        end_marked(self._folder)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    with running(Moto(tmp_path_factory.mktemp("moto"))) as server:
        yield server


@pytest.fixture
def as_role(
    moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Makes this process one of a pod whose service account has a role with a policy."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(MOUNT_VARIABLE, str(tmp_path / "no-secret"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    moto.enforce(NEVER)
    token = tmp_path / "token"
    token.write_text("token-of-the-pod")

    def become(policy: dict, name: str = "trainer") -> None:
        iam = moto.client("iam")
        trust = {"Version": "2012-10-17", "Statement": [_TRUST]}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(key, raising=False)  # of another role
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE + name)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))

    yield become
    moto.enforce(NEVER)
    iam = moto.client("iam")
    for role in iam.list_roles()["Roles"]:
        iam.delete_role_policy(RoleName=role["RoleName"], PolicyName="p")
        iam.delete_role(RoleName=role["RoleName"])


def enforced(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with keys of the role, whose requests are checked from now on.

    The keys are fetched before, because moto would check STS's only unsigned call, too.
    """
    keys = Store().session._keys("test")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    monkeypatch.setenv("AWS_SESSION_TOKEN", keys.token)
    moto.enforce()
    return Store(patience=Patience(seconds=1))


def documented() -> dict:
    """Return the policy of docs/operations.md for the buckets of this test."""
    page = (ROOT / "docs" / "operations.md").read_text()
    (policy,) = re.findall(r"```json\n(\{\s+\"Version\".*?)```", page, re.DOTALL)
    names = {"BUCKET/PREFIX": str(OUTPUT)[5:], "BUCKET": OUTPUT.bucket, "DATA": DATA.bucket}
    return json.loads(re.sub("BUCKET/PREFIX|BUCKET|DATA", lambda it: names[it[0]], policy))


def pairs() -> list[tuple[str, str]]:
    """Return each action of the policy with each of its resources."""
    found = []
    for statement in documented()["Statement"]:
        resources = statement["Resource"]
        for resource in [resources] if isinstance(resources, str) else resources:
            found += [(action, resource) for action in statement["Action"]]
    return found


def without(action: str, resource: str) -> dict:
    kept = [pair for pair in pairs() if pair != (action, resource)]
    statements = [{"Effect": "Allow", "Action": [a], "Resource": r} for a, r in kept]
    return {"Version": "2012-10-17", "Statement": statements}


@dataclass(frozen=True)
class Needs:
    """What needs an action, and what its message says without it."""

    call: Callable[[Store, Path], object]
    message: str


def break_upload(store: Store, folder: Path) -> None:
    """Send a large file that changes meanwhile, so that its upload is aborted."""
    path = folder / "large"
    path.write_bytes(b"x" * (PART + 1))
    with open(path, "rb") as file:
        changing = OpenFile(file.fileno(), PART + 1, 0, path, lambda: True)
        with pytest.raises(FileChangedError):
            PartsUpload(store.session, changing, OUTPUT / "large").send()


DENIED = "the credentials do not allow this"
NEEDS = {
    ("s3:GetObject", "bucket/team/*"): Needs(lambda s, _: s.read(OUTPUT / "there"), DENIED),
    ("s3:PutObject", "bucket/team/*"): Needs(lambda s, _: s.write(OUTPUT / "x", b"1"), DENIED),
    ("s3:DeleteObject", "bucket/team/*"): Needs(
        lambda s, _: check_store(s, OUTPUT, OUTPUT), "objects cannot be deleted below s3://bucket"
    ),
    ("s3:AbortMultipartUpload", "bucket/team/*"): Needs(
        break_upload, "parts of an unfinished upload remain at s3://bucket/team/large"
    ),
    ("s3:GetObject", "data/*"): Needs(lambda s, _: s.read(DATA), DENIED),
    ("s3:ListBucket", "bucket"): Needs(lambda s, _: list(s.list(OUTPUT)), DENIED),
    ("s3:ListBucket", "data"): Needs(lambda s, _: list(s.list(S3Address("data"))), DENIED),
}


@pytest.mark.parametrize(("action", "resource"), pairs())
def test_each_action_of_the_policy_is_needed(
    moto: Moto,
    as_role: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    action: str,
    resource: str,
) -> None:
    moto.client("s3").put_object(Bucket=OUTPUT.bucket, Key=f"{OUTPUT.key}/there", Body=b"1")
    needs = NEEDS[action, resource.rpartition(":::")[2]]

    def outcome(policy: dict, name: str) -> list[str]:
        moto.enforce(NEVER)
        as_role(policy, name)
        store = enforced(moto, monkeypatch)
        caplog.clear()
        try:
            needs.call(store, tmp_path)
        except ConfigurationError as error:
            (problem,) = error.as_problems
            assert problem.received and problem.expected and problem.fix
            return [str(error)]
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert outcome(documented(), "complete") == []
    *_, message = outcome(without(action, resource), "without")
    assert needs.message in message and "AccessDenied" in message + caplog.text


def test_the_policy_suffices_for_a_run(
    moto: Moto, as_role: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From preflight to the champion, with two replicas and the sidecar as processes."""
    as_role(documented())
    enforced(moto, monkeypatch)
    command = [sys.executable, "-m", "kfp_tfjob.pipelines", "run", "--home", tmp_path / "home"]
    command += ["--data", DATA, "--label", "digit", "--name", "digits", "--epochs", "2"]
    command += ["--output", OUTPUT, "--endpoint", moto.url]
    run = subprocess.run(
        list(map(str, command)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "AccessDenied" not in run.stdout
    champion = OUTPUT / "models" / "digits" / "champions" / "1.json"
    assert json.loads(Store().read(champion))["version"] == 1


def test_the_policy_allows_no_other_folder(
    moto: Moto, as_role: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_role(documented())
    store = enforced(moto, monkeypatch)
    for call in (
        lambda: store.write(S3Address("bucket", "others/x"), b"1"),
        lambda: store.write(S3Address("data", "x"), b"1"),
        lambda: store.delete(DATA),
    ):
        with pytest.raises(StepError, match=DENIED):
            call()


@pytest.mark.parametrize("way", ["IRSA", "Pod Identity"])
def test_the_sidecar_gets_its_keys_from(
    moto: Moto,
    as_role: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """As a process: `python -m kfp_tfjob.uploader watch`."""
    as_role(documented())
    with FaultProxy() as agent:
        if way == "Pod Identity":
            keys = Store().session._keys("test")
            monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
            given = {"AccessKeyId": keys.access_key, "SecretAccessKey": keys.secret_key}
            given |= {"Token": keys.token, "Expiration": "2999-01-01T00:00:00Z"}
            agent.faults = [Fault(answer_xml(200, json.dumps(given)), "GET", times=EVER)]
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.endpoint}/keys")
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
            moto.enforce()
        run = RunLayout(OUTPUT / "runs" / way.replace(" ", "-"))
        pod = Pod(tmp_path / "pod", run, moto.url)
        try:
            sidecar = pod.sidecar(RUN_ID=RUN)
            pod.checkpoint(1)
            pod.says("stored checkpoint 1")
            assert pod.end(sidecar) == 0
        finally:
            pod.stop()
        assert bool(agent.seen) == (way == "Pod Identity")
        assert pod.steps(Store()) == [1]
