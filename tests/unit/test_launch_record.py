"""Secrets in the record of an attempt."""

from kfp_tfjob.jobs import log_masking
from kfp_tfjob.jobs.log_masking import MASK, Mask
from kfp_tfjob.jobs.record import AttemptEnd


def test_a_secret_is_blotted_out(tmp_path, monkeypatch):
    monkeypatch.setenv("STORAGE_SECRET_DIR", str(tmp_path))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/of+this=process")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("the-secret-key\n")
    mask = Mask()
    assert mask("x=the-secret-key; token/of+this=process") == f"x={MASK}; {MASK}"
    assert mask("nothing") == "nothing"


def test_a_secret_that_is_an_ordinary_word_leaves_a_record_that_can_be_read(monkeypatch) -> None:
    monkeypatch.setattr(log_masking, "_hidden", {"seconds", "123456", "kubeflow"})
    end = AttemptEnd(
        *(1, "j", "kubeflow", "succeeded", 0, "a kubeflow of 123456 seconds", "", (), ()),
        seconds={"running": 123456.0},
    )
    read = AttemptEnd.from_bytes(end.to_bytes())
    assert (read.namespace, read.seconds) == ("kubeflow", {"running": 123456.0})
    assert read.sentence == "a ****** of ****** ******"
