"""What a run may use up: attempts without progress in a row."""

import pytest

from kfp_tfjob.components.launch_tfjob.records import Claim


def chain(*checkpoints: int, placed: tuple[bool, ...] = ()) -> Claim:
    """Return the claim after attempts that found these newest checkpoints when they ended."""
    claim = Claim.first(1, 0)
    for number, checkpoint in enumerate(checkpoints):
        counts = placed[number] if placed else True
        claim = claim.next(number + 2, checkpoint, counts)
    return claim


@pytest.mark.parametrize(
    ("claim", "fruitless"),
    [
        (chain(), 0),
        (chain(0, 0, 0), 3),
        (chain(5, 9, 14, 20, 31), 0),
        (chain(0, 0, 7), 0),
        (chain(0, 0, 7, 7), 1),
        # It fell back on an older one and came no further than before.
        (chain(7, 3, 7), 2),
        (chain(0, 0, placed=(False, False)), 0),
        (chain(0, 0, placed=(True, False)), 1),
    ],
)
def test_only_attempts_without_a_newer_checkpoint_count_and_only_in_a_row(claim, fruitless):
    assert claim.fruitless == fruitless
