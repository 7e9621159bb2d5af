"""The table of `make test-kfp`: whose seconds those of a run were."""

import pytest

from tests.kfp.shares import Shares, shares

WORKFLOW = {
    "metadata": {"creationTimestamp": "2026-11-23T10:00:00Z"},
    "status": {"finishedAt": "2026-11-23T10:02:00Z"},
}


def pod(name: str, *spans: tuple[str, str]) -> dict:
    """A pod at a node of the Workflow, whose main container ran from and to 10:MM:SS."""
    ended = [
        {"startedAt": f"2026-11-23T10:{a}Z", "finishedAt": f"2026-11-23T10:{b}Z"} for a, b in spans
    ]
    return {
        "metadata": {"annotations": {"workflows.argoproj.io/node-name": name}},
        "status": {
            "containerStatuses": [
                {"name": "wait", "state": {"running": {}}},
                *({"name": "main", "state": {"terminated": it}} for it in ended),
            ]
        },
    }


STEP = "run.root.exit-handler-1.preflight.executor(0)"
PODS = [
    pod("run.root-driver", ("00:10", "00:12")),
    pod("run.root.exit-handler-1.preflight-driver(1)", ("00:20", "00:23")),
    pod(STEP, ("00:30", "00:50")),
    pod("run.root.exit-handler-1.publish-driver", ("00:45", "00:55")),  # beside the step
    pod("run(0).root(0).exit-handler-1(0).launch-tfjob(0).executor(0)", ("01:00", "01:30")),
    pod("run.root.exit-handler-1.evaluate.executor"),  # it never started
]


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (0, Shares(120, ours=50, drivers=10, argo=60)),
        (1795428080.0, Shares(40, ours=10, drivers=0, argo=30)),  # 10:01:20
    ],
    ids=["whole", "after a retry"],
)
def test_shares_add_up(since: float, expected: Shares) -> None:
    assert shares(WORKFLOW, PODS, since) == expected
