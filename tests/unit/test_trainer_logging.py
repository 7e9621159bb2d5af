"""The trainer's lines appear whatever the user's code does to logging."""

import subprocess
import sys

import pytest

_PROGRAM = """
import logging, logging.config, sys
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.trainer import __main__ as trainer

log = logging.getLogger("kfp_tfjob.trainer.loop")
logging.basicConfig(level=logging.INFO, handlers=[log_to(sys.stdout)])
{code}
trainer._log_info()
log.info("epoch 1")
"""


@pytest.mark.parametrize(
    "code",
    [
        "",
        "logging.disable(logging.CRITICAL)",
        "logging.getLogger().setLevel(logging.ERROR)",
        "logging.getLogger().handlers.clear()",
        "logging.getLogger().handlers[0].setLevel(logging.ERROR)",
        "logging.basicConfig(force=True, level=logging.ERROR, handlers=[logging.NullHandler()])",
        "logging.config.dictConfig({'version': 1, 'root': {'level': 'ERROR', 'handlers': []}})",
        "logging.getLogger('kfp_tfjob').setLevel(logging.ERROR)",
    ],
)
def test_progress_is_logged(code: str) -> None:
    """The launcher ends a chief that is silent."""
    program = [sys.executable, "-c", _PROGRAM.format(code=code)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert [line.split(" ", 1)[1] for line in done.stdout.splitlines()] == ["epoch 1"]
