"""How `why` takes the message of a failed step apart."""

import pytest

from kfp_tfjob.pipelines.kubeflow.reasons import _parts


@pytest.mark.parametrize(
    ("message", "reason", "remedy"),
    [
        ("it broke. Fix: mend it.", "it broke.", "mend it."),
        (
            "chief-0 broke. Fix: mend it. Its last lines:\n    step 1\n    no data. Fix: none",
            "chief-0 broke. Its last lines:\n    step 1\n    no data. Fix: none",
            "mend it.",
        ),
        ("chief-0 broke. Its last lines:\n    x", "chief-0 broke. Its last lines:\n    x", ""),
        ("2 problems:\na. Fix: b.\nc. Fix: d.", "2 problems:\na. Fix: b.\nc. Fix: d.", ""),
    ],
)
def test_what_happened_and_what_to_do(message: str, reason: str, remedy: str) -> None:
    assert _parts(message) == (reason, remedy)
