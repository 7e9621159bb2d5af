"""Follows a model's champion: a new one takes over when it is proven, loaded and warm.

The current one is replaced by one assignment. A request keeps the champion it began with, so
none is lost, and the old one leaves memory with its last request. A champion that cannot be proven
or loaded is never used: the previous one stays in use, and the log and a metric say so.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kfp_tfjob.registry.chain import prove
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.storage.champion import Champion, no_champion, read_champion
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

if TYPE_CHECKING:
    from kfp_tfjob.serving.metrics import Metrics

# A champion that was rejected is tried again: a person may repair it, or a copy be incomplete. Each
# try fetches and loads all of it, so the pauses double. In seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0

log = logging.getLogger(__name__)


class Follower:
    """Holds the champion that answers.

    Args:
        store: The store.
        layout: Where the models are.
        model_name: The model.
        metrics: Where to show what happens.

    Attributes:
        current: The champion that answers; None before `start`.
    """

    def __init__(self, store: Store, layout: Layout, model_name: str, metrics: Metrics) -> None:
        self._store, self._layout, self._model_name = store, layout, model_name
        self._metrics = metrics
        self.current: LoadedModel | None = None
        # A champion, when to try it again, the pause.
        self._refused: tuple[Champion | None, float, float] = (None, 0.0, 0.0)
        self._away = False
        self._said = ""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Load the champion that the model has now.

        Raises:
            ConfigurationError: The model has no champion, or does not fit into memory.
            DataError: It cannot be proven, or this version of the server cannot load it.
            StoreUnavailableError: The store is unreachable.
        """
        proven = prove(self._store, self._layout, self._model_name)
        if proven is None:
            raise ConfigurationError(no_champion(self._layout, self._model_name))
        try:
            self._take(LoadedModel.of(self._store, proven))
        except MemoryError as error:
            raise ConfigurationError(
                Problem(
                    f"version {proven.champion.version} of {self._model_name} does not fit into"
                    " the server's memory",
                    received=str(error) or "no more memory",
                    expected="memory for the model and for the rows of a request",
                    fix="raise the memory of the server's container, or roll back to a smaller"
                    f" model: kfp-tfjob models rollback {self._model_name}",
                )
            ) from error

    def follow(self, seconds: float) -> None:
        """Look for a new champion from now on, in a thread.

        Args:
            seconds: Between two looks.
        """
        self._thread = threading.Thread(target=self._loop, args=[seconds], name="follow")
        self._thread.daemon = True  # a download must not hold up the server's end
        self._thread.start()

    def stop(self) -> None:
        """Stop to look for new champions."""
        self._end.set()

    def look(self, clock: Callable[[], float] = time.monotonic) -> bool:
        """Look once for a new champion, and let it take over.

        Returns:
            Whether one took over.
        """
        try:
            return self._look(clock)
        except DataError as error:  # of the record itself
            self._say(str(error))
        except StepError as error:
            if not self._away:
                log.warning("the store cannot be read, so the champion is unchanged. %s", error)
            self._away = True
        except Exception:
            log.exception("looking for a new champion failed, so the current one stays in use")
        return False

    def _look(self, clock: Callable[[], float]) -> bool:
        assert self.current is not None
        newest = read_champion(self._store, self._layout, self._model_name)
        self._metrics.reached()
        if self._away:
            log.warning("the store can be read again")
            self._away = False
        now = self.current.champion
        record = self._layout.model(self._model_name).champion(now.number)
        if newest is None or (newest.number < now.number and self._store.has(record)):
            self._say(
                f"champion {now.number} stays in use, although the newest record that the store"
                f" lists is {newest.number if newest else 0}"
            )
            return False
        # Not their numbers: one whose record was removed leaves its number to the next.
        if newest == now:
            return False
        refused, again, _ = self._refused
        if newest == refused and clock() < again:
            return False
        try:
            proven = prove(self._store, self._layout, self._model_name)
            if proven is None or proven.champion.number < newest.number:
                return False
            self._take(LoadedModel.of(self._store, proven))
            return True
        except StoreUnavailableError:
            raise
        except StepError as error:
            self._refuse(newest, str(error), clock)
        except Exception as error:  # also of TensorFlow, or of a newer program's files
            log.debug("champion %d", newest.number, exc_info=True)
            self._refuse(newest, f"{type(error).__name__}: {error}", clock)
        return False

    def _refuse(self, champion: Champion, why: str, clock: Callable[[], float]) -> None:
        """Keep the champion that answers, and try the new one again later."""
        assert self.current is not None
        self._metrics.refused(champion.number)
        refused, _, pause = self._refused
        pause = min(2 * pause, _LONGEST_PAUSE) if champion == refused else _FIRST_PAUSE
        if champion != refused:
            log.error(
                "champion %d is rejected, and champion %d stays in use. %s",
                champion.number,
                self.current.champion.number,
                why,
            )
        self._refused = champion, clock() + pause, pause
        gc.collect()  # what was loaded of it

    def _take(self, loaded: LoadedModel) -> None:
        switched, self.current = self.current is not None, loaded
        self._metrics.answers(loaded.champion.number, loaded.champion.version, switched)
        self._metrics.reached()
        self._said = ""

    def _loop(self, seconds: float) -> None:
        while not self._end.wait(seconds):
            if self.look():
                gc.collect()  # the functions of a SavedModel refer to each other

    def _say(self, text: str) -> None:
        """Log something once."""
        if text != self._said:
            log.error("%s", text)
        self._said = text
