"""Follows a model's champion: a new one takes over when it is verified, loaded and warm.

One assignment replaces the current champion. A request keeps the champion it began with, so no
request is lost, and the old champion leaves memory with its last request. A champion that cannot be
verified or loaded is never used. The previous one then stays in use, and the log and a metric
report it. Started by server.py; protocol.py reads `current` for each request.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import Champion, no_champion, read_champion
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

from .loaded_model import LoadedModel

if TYPE_CHECKING:
    from .metrics import Metrics

# Seconds until a rejected champion is loaded again, because a person may repair it, or a copy may
# have been incomplete. Each attempt downloads and loads the whole model, so the pauses double.
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0

log = logging.getLogger(__name__)


class Follower:
    """Loads a model's champion and replaces it when another one is promoted.

    Args:
        store: The store.
        layout: The addresses of models.
        model_name: The model.
        metrics: Receives switches, rejected champions and the time of the last poll.

    Attributes:
        current: The champion in use; None before `start`.
    """

    def __init__(self, store: Store, layout: Layout, model_name: str, metrics: Metrics) -> None:
        self._store, self._layout, self._model_name = store, layout, model_name
        self._metrics = metrics
        self.current: LoadedModel | None = None
        # The rejected champion, the time of the next attempt, and the pause before it.
        self._rejected: tuple[Champion | None, float, float] = (None, 0.0, 0.0)
        self._store_unreachable = False
        self._last_logged = ""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Load the model's current champion.

        Raises:
            ConfigurationError: There is no champion, or it does not fit into memory.
            DataError: It cannot be verified, or this version of the server cannot load it.
            StoreUnavailableError: The store is unreachable.
        """
        verified = verify_champion(self._store, self._layout, self._model_name)
        if verified is None:
            raise ConfigurationError(no_champion(self._layout, self._model_name))
        try:
            self._switch_to(LoadedModel.of(self._store, verified))
        except MemoryError as error:
            raise ConfigurationError(
                Problem(
                    f"version {verified.champion.version} of {self._model_name} does not fit into"
                    " the server's memory",
                    received=str(error) or "no more memory",
                    expected="memory for the model and for the rows of a request",
                    fix="raise the memory of the server's container, or roll back to a smaller"
                    f" model: kfp-tfjob models rollback {self._model_name}",
                )
            ) from error

    def follow(self, seconds: float) -> None:
        """Start a thread that polls for a new champion.

        Args:
            seconds: The time between two polls.
        """
        self._thread = threading.Thread(target=self._loop, args=[seconds], name="follow")
        self._thread.daemon = True  # a download must not hold up the server's end
        self._thread.start()

    def stop(self) -> None:
        """Stop polling for new champions."""
        self._end.set()

    def poll(self, clock: Callable[[], float] = time.monotonic) -> bool:
        """Poll once for a new champion, and switch to it.

        Errors are logged, never raised, because the current champion can still answer.

        Args:
            clock: The time in seconds.

        Returns:
            Whether the champion was replaced.
        """
        try:
            return self._poll(clock)
        except DataError as error:  # the champion's record is damaged
            self._log_once(str(error))
        except StepError as error:
            if not self._store_unreachable:
                log.warning("the store cannot be read, so the champion is unchanged. %s", error)
            self._store_unreachable = True
        except Exception:
            log.exception("looking for a new champion failed, so the current one stays in use")
        return False

    def _poll(self, clock: Callable[[], float]) -> bool:
        """Switch to the newest champion, and return True, if it is new and was not just rejected.

        Raises:
            StepError: The store is unreachable, or the newest record is damaged.
        """
        assert self.current is not None
        newest = read_champion(self._store, self._layout, self._model_name)
        self._metrics.reached()
        if self._store_unreachable:
            log.warning("the store can be read again")
            self._store_unreachable = False
        current = self.current.champion
        address = self._layout.model(self._model_name).champion(current.number)
        # A store may not list a new record yet, but `has` does not need its list.
        if newest is None or (newest.number < current.number and self._store.has(address)):
            self._log_once(
                f"champion {current.number} stays in use, although the newest record that the store"
                f" lists is {newest.number if newest else 0}"
            )
            return False
        # Compare records, not numbers: if a record was removed, the next one gets its number.
        if newest == current:
            self._metrics.refused(0)  # a newer one that was rejected may have been removed
            return False
        rejected, retry_at, _ = self._rejected
        if newest == rejected and clock() < retry_at:
            return False
        try:
            verified = verify_champion(self._store, self._layout, self._model_name)
            if verified is None or verified.champion.number < newest.number:
                return False
            self._switch_to(LoadedModel.of(self._store, verified))
            return True
        except StoreUnavailableError:
            raise
        except StepError as error:
            self._reject(newest, str(error), clock)
        except Exception as error:  # TensorFlow's own, or from the files of a newer version
            log.debug("champion %d", newest.number, exc_info=True)
            self._reject(newest, f"{type(error).__name__}: {error}", clock)
        return False

    def _reject(self, champion: Champion, reason: str, clock: Callable[[], float]) -> None:
        """Keep the current champion, and schedule the next attempt at the new one."""
        assert self.current is not None
        self._metrics.refused(champion.number)
        rejected, _, pause = self._rejected
        pause = min(2 * pause, _LONGEST_PAUSE) if champion == rejected else _FIRST_PAUSE
        if champion != rejected:
            log.error(
                "champion %d is rejected, and champion %d stays in use. %s",
                champion.number,
                self.current.champion.number,
                reason,
            )
        self._rejected = champion, clock() + pause, pause
        gc.collect()  # frees the parts that were loaded

    def _switch_to(self, loaded: LoadedModel) -> None:
        switched, self.current = self.current is not None, loaded
        self._metrics.answers(loaded.champion.number, loaded.champion.version, switched)
        self._metrics.reached()
        self._last_logged = ""

    def _loop(self, seconds: float) -> None:
        while not self._end.wait(seconds):
            if self.poll():
                gc.collect()  # the functions of a SavedModel refer to each other

    def _log_once(self, text: str) -> None:
        """Log an error, unless it was the last one logged."""
        if text != self._last_logged:
            log.error("%s", text)
        self._last_logged = text
