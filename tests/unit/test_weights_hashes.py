"""Two hashes of one training have two names, and each says what it is a hash of."""

from pathlib import Path

from kfp_tfjob.components.publish import card
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.storage.champion import Champion
from tests.typed_schema import typed

SOURCES = Path(__file__).parents[2] / "kfp_tfjob"
RECORD = """{
 "dataset_digest": "d",
 "metrics": {
  "accuracy": 0.5
 },
 "run_id": "r",
 "schema_digest": "s",
 "verdict_uri": "s3://b/verdict.json",
 "version": 2,
 "version_uri": "s3://b/versions/2",
 "weights_digest": "abc"
}
"""


def test_the_record_of_a_champion_keeps_its_bytes():
    champion = Champion.from_bytes(3, RECORD.encode())
    assert (champion.number, champion.exported_weights_sha256) == (3, "abc")
    assert champion.to_bytes().decode() == RECORD


def test_the_model_card_says_what_its_hash_is_of():
    verdict = {"intervals": {}, "reasons": [], "rows": 1, "confidence": 0.95}
    text = card.render(
        "m",
        Champion.from_bytes(3, RECORD.encode()),
        verdict,
        {},
        StatisticsDocument(),
        typed({}),
    )
    assert "**SHA-256 of the exported weights:** `abc`\n" in text
