"""What a notification says, where it may go, and which failures are final."""

import json

import pytest

from kfp_tfjob.components import notify
from kfp_tfjob.components.webhook import Webhook
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.secret_keys import WEBHOOK_KEY
from tests.problems import problem_of

SECRET = "T0123/B4567/s3cr3t-of-the-channel"
NOTICE = notify.Notice(
    *("published", "r1", "publish", "blessed", 0, "published version 1"),
    addresses={"report": "s3://kfp-tfjob/runs/r1/evaluation/report.html"},
    metrics={"auc": 0.9},
)


@pytest.fixture(autouse=True)
def no_secret(monkeypatch, tmp_path):
    monkeypatch.setenv(MOUNT_VARIABLE, str(tmp_path))
    monkeypatch.delenv(WEBHOOK_KEY, raising=False)


def webhook(monkeypatch, url: str) -> Webhook | None:
    monkeypatch.setenv(WEBHOOK_KEY, url)
    return Webhook.from_environment()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        (f"https://hooks.slack.com/services/{SECRET}", "hooks.slack.com"),
        ("https://example.com:8443/x?token=1", "example.com"),
        ("http://localhost:9000/", "localhost"),
        ("http://127.0.0.1/x", "127.0.0.1"),
        ("http://[::1]:8000/x", "::1"),
        (" https://a.example/x\n", "a.example"),
    ],
)
def test_an_address_that_is_accepted(monkeypatch, url, host):
    found = webhook(monkeypatch, url)
    assert found.host == host
    assert url.strip() not in repr(found)


@pytest.mark.parametrize(
    ("url", "received"),
    [
        (f"ftp://a.example/{SECRET}", "https nor http"),
        (f"file:///etc/{SECRET}", "https nor http"),
        (SECRET, "https nor http"),
        (f"https:///{SECRET}", "without a host"),
        (f"https://a.example:port/{SECRET}", "not a URL"),
        (f"https://a.example/{SECRET} x", "spaces"),
        (f"https://[::1/{SECRET}", "not a URL"),
    ],
)
def test_an_address_that_is_refused_is_not_shown(monkeypatch, url, received):
    problem = problem_of(webhook, monkeypatch, url)
    assert received in problem.received and SECRET not in str(problem)


def test_without_an_address_nobody_is_notified(monkeypatch):
    assert Webhook.from_environment() is None
    assert webhook(monkeypatch, "  ") is None


def test_the_secret_comes_before_the_environment(monkeypatch, tmp_path):
    (tmp_path / WEBHOOK_KEY).write_text("https://from.secret.example/x\n")
    assert webhook(monkeypatch, "https://from.environment.example/x").host == "from.secret.example"


def test_the_address_is_masked_in_every_log(monkeypatch):
    webhook(monkeypatch, f"https://hooks.slack.com/services/{SECRET}")
    said = Mask()(f"POST https://hooks.slack.com/services/{SECRET}; path /services/{SECRET}")
    assert SECRET not in said


@pytest.mark.parametrize("path", ["kfp-tfjob", "report", "metrics", "runs/r1/evaluation"])
def test_a_word_in_the_address_is_no_secret_elsewhere(monkeypatch, path):
    """`https://bot.example/kfp-tfjob` masked every address in the bucket kfp-tfjob."""
    url = f"https://bot.example/{path}"
    before = NOTICE.document()
    webhook(monkeypatch, url)
    assert url not in Mask()(f"POST {url}")
    assert Mask()(NOTICE.text) == NOTICE.text
    assert NOTICE.document() == before | {"time": NOTICE.document()["time"]}


def document(message: str) -> dict:
    return notify.failure("r1", Failure("evaluate", 1, "failed", message)).document()


def test_the_text_mentions_nobody_and_links_nowhere():
    text = document("<!channel> <https://evil|here> a & b")["text"]
    assert "<" not in text and "&lt;!channel&gt;" in text and "a &amp; b" in text


def test_a_long_message_is_cut_in_the_text_only():
    found = document("x" * 100_000)
    assert len(found["text"]) < 5000 and len(found["message"]) == 100_000


def test_the_document_has_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    found = document('said "very-secret"')
    assert "very-secret" not in json.dumps(found) and found["step"] == "evaluate"
    notice = notify.failure("r1", Failure("evaluate", 1, "failed", "no", fix="type very-secret"))
    assert "very-secret" not in json.dumps(notice.document())


@pytest.mark.parametrize(
    ("index", "strategy", "again"),
    [
        ("0", {"limit": "2"}, True),
        ("1", {"limit": 2, "retryPolicy": "Always"}, True),
        ("2", {"limit": "2", "retryPolicy": "OnFailure"}, False),
        ("0", {"limit": "2", "retryPolicy": "OnError"}, False),
        ("", {"limit": "2", "retryPolicy": "OnError"}, False),
        ("0", {"limit": "{{inputs.parameters.x}}"}, False),
        ("0", {}, False),
        ("0", None, False),
    ],
)
def test_a_failure_that_is_retried(monkeypatch, tmp_path, index, strategy, again):
    monkeypatch.setenv("KFP_RETRY_INDEX", index)
    template = tmp_path / "template"
    template.write_text(json.dumps({"name": "x", "retryStrategy": strategy}))
    assert notify.will_be_retried(template) is again
    assert notify.will_be_retried(tmp_path / "missing") is False


def test_the_page_of_preflight_names_the_host_only(monkeypatch):
    from kfp_tfjob.components.preflight.engine import _check_webhook

    assert _check_webhook()[1] == [] and WEBHOOK_KEY in _check_webhook()[0]
    monkeypatch.setenv(WEBHOOK_KEY, f"https://hooks.slack.com/services/{SECRET}")
    assert _check_webhook() == ("on, to `hooks.slack.com`", [])
    monkeypatch.setenv(WEBHOOK_KEY, f"ftp://hooks.slack.com/services/{SECRET}")
    state, (warning,) = _check_webhook()
    assert state == "off" and WEBHOOK_KEY in warning.text
    assert SECRET not in warning.text
