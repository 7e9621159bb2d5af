"""The follower: a champion that cannot be loaded, and a store that blinks."""

from types import SimpleNamespace
from typing import Any

import pytest

from kfp_tfjob.serving import follower
from kfp_tfjob.serving.follower import Follower
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    DataError,
    StepError,
    StoreUnavailableError,
)


class Models:
    """The champions of a model, each a number; `fails` is what loading one raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newest, self.loads, self.now = 1, 0, 0.0
        self.fails: Exception | None = None
        self.away = False
        self.refused: list[int] = []
        monkeypatch.setattr(follower, "read_champion", self.read)
        monkeypatch.setattr(follower, "prove", lambda *_: self.proven())
        monkeypatch.setattr(follower.LoadedModel, "of", lambda store, proven: self.load())
        metrics = SimpleNamespace(
            reached=lambda: None, refused=self.refused.append, answers=lambda *_: None
        )
        self.follower = Follower(None, None, "pets", metrics)  # type: ignore[arg-type]

    def read(self, *_: object) -> Any:
        if self.away:
            raise StoreUnavailableError("the store is away")
        return SimpleNamespace(number=self.newest, version=self.newest)

    def proven(self) -> Any:
        return SimpleNamespace(champion=self.read())

    def load(self) -> Any:
        self.loads += 1
        if self.fails:
            raise self.fails
        return SimpleNamespace(champion=self.read())

    def look(self) -> bool:
        return self.follower.look(lambda: self.now)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    return Models(monkeypatch)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("features"),
        MemoryError(),
        DataError("it is damaged"),
        ConfigurationError("not enough space"),
    ],
)
def test_a_champion_that_cannot_be_loaded_is_tried_once_a_minute(
    models: Models, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    models.follower.start()
    models.newest, models.fails = 2, error
    for models.now in (1.0, 11.0, 60.0):  # type: ignore[misc]
        assert not models.look()
    assert models.loads == 2 and models.refused == [2]
    (said,) = [it.getMessage() for it in caplog.records if it.levelname == "ERROR"]
    assert "champion 2 is refused, champion 1 continues to answer" in said
    assert "the store cannot be read" not in caplog.text and "Traceback" not in caplog.text
    models.now, models.fails = 62.0, None
    assert models.look() and models.follower.current.champion.number == 2  # type: ignore[union-attr]


def test_a_store_that_blinks_refuses_no_champion(models: Models) -> None:
    models.follower.start()
    models.newest, models.fails = 2, StoreUnavailableError("it went away while it was read")
    assert not models.look() and not models.refused
    models.away = True
    assert not models.look()
    models.away, models.fails = False, None
    assert models.look() and models.follower.current.champion.number == 2  # type: ignore[union-attr]


def test_what_cannot_be_loaded_at_the_start_is_said(models: Models) -> None:
    models.fails = KeyError("features")
    with pytest.raises(StepError, match=r"version 1 of pets cannot be loaded(.|\n)*Fix: "):
        models.follower.start()
