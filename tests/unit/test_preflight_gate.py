"""What preflight finds in `gate`: the code of the evaluator."""

from pathlib import Path

from kfp_tfjob.components.preflight.engine import check_evaluator
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import place_of


def test_the_code_of_the_evaluator(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def cost(labels, predictions):\n    return {'cost': 1}\n")
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:cost"})
    digest, problems = check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert len(digest) == 64 and problems == []
    assert gate and place_of("gate.evaluator", gate.evaluator) == {"gate.evaluator": str(code)}
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:coast"})
    digest, (problem,) = check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert digest == "" and problem.path == "gate.evaluator" and "coast" in str(problem)
    assert problem.suggestion == f"{code}:cost"
    assert check_evaluator(Store("http://127.0.0.1:1", "r"), None) == ("", [])
