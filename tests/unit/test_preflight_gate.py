"""What preflight finds in `gate`: the code of the evaluator."""

from pathlib import Path

from kfp_tfjob.components.preflight import gate as gates
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.storage.store import Store


def test_the_code_of_the_evaluator(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def cost(labels, predictions):\n    return {'cost': 1}\n")
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:cost"})
    digest, problems = gates.check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert len(digest) == 64 and problems == []
    assert gates.place(gate) == {"gate.evaluator": str(code)}
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:coast"})
    digest, (problem,) = gates.check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert digest == "" and problem.path == "gate.evaluator" and "coast" in str(problem)
    assert problem.suggestion == f"{code}:cost"
    assert gates.check_evaluator(Store("http://127.0.0.1:1", "r"), None) == ("", [])
