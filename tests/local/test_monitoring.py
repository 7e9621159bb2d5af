"""deploy/optional/monitoring on promtool and a real Prometheus, without a cluster."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.ports import free_port

# What the exporters and a server offer, as series of one run, a pod of it that waits, and a model.
GPU = 'namespace="a",pod="p",gpu="0",kfp_tfjob_run="r",kfp_tfjob_model="m"'
SERVER = 'namespace="a",pod="s",model_name="m"'
SERIES = [
    f"DCGM_FI_DEV_FB_FREE{{{GPU}}}",
    f"DCGM_FI_DEV_FB_USED{{{GPU}}}",
    f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}",
    f"kfp_tfjob_champion_number{{{SERVER}}}",
    f"kfp_tfjob_champion_refused{{{SERVER}}}",
    f'kfp_tfjob_request_seconds_bucket{{{SERVER},protocol="v2",le="0.5"}}',
    f'kfp_tfjob_request_seconds_bucket{{{SERVER},protocol="v2",le="+Inf"}}',
    f'kfp_tfjob_requests_total{{{SERVER},protocol="v2",code="200"}}',
    f"kfp_tfjob_store_reached_timestamp_seconds{{{SERVER}}}",
    'kube_pod_container_resource_requests{namespace="a",pod="p",resource="nvidia_com_gpu"}',
    'kube_pod_labels{namespace="a",pod="p",label_kfp_tfjob_run="r",label_kfp_tfjob_model="m"}',
    'kube_pod_labels{namespace="a",pod="w",label_kfp_tfjob_run="r",label_kfp_tfjob_model="m"}',
    'kube_pod_status_phase{namespace="a",pod="p",phase="Running"}',
    'kube_pod_status_phase{namespace="a",pod="w",phase="Pending"}',
]
SAMPLES = 120  # one a minute


@pytest.fixture(scope="module")
def monitoring() -> Path:
    return Path(__file__).parents[2] / "deploy" / "optional" / "monitoring"


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not on PATH: apt-get install prometheus")
    return found


@pytest.fixture
def prometheus(promtool: str, tmp_path: Path) -> Iterator[str]:
    """A server with two hours of samples; its address."""
    begin = int(time.time()) - 3 * 3600
    lines = [
        f"{series} {it if 'request' in series else 1} {begin + 60 * it}"
        for series in SERIES
        for it in range(SAMPLES)
    ]
    (tmp_path / "samples").write_text("\n".join([*lines, "# EOF", ""]))
    data = tmp_path / "data"
    blocks = ["tsdb", "create-blocks-from", "openmetrics", tmp_path / "samples", data]
    subprocess.run([promtool, *blocks], check=True, capture_output=True)
    (tmp_path / "prometheus.yml").write_text("")
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={data}"]
    program = Path(promtool).with_name("prometheus")
    server = subprocess.Popen(
        [program, *options, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://{address}/api/v1/query?time={begin + 60 * SAMPLES - 1}&query="
    finally:
        server.terminate()
        server.wait()


def _answer(url: str) -> list[dict]:
    """Ask a server that may have just been started."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def _panels(monitoring: Path) -> list[tuple[str, str]]:
    dashboard = json.loads((monitoring / "dashboard.json").read_text())
    return [(it["title"], target["expr"]) for it in dashboard["panels"] for target in it["targets"]]


def test_each_alert_fires_and_does_not_fire(
    monitoring: Path, promtool: str, repository: Path, tmp_path: Path
) -> None:
    rules = yaml.safe_load((monitoring / "rules.yaml").read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    cases = tmp_path / "alerts.test.yaml"
    shutil.copy(repository / "tests/data/monitoring/alerts.test.yaml", cases)
    for command in (["check", "rules", tmp_path / "rules.yaml"], ["test", "rules", cases]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    asked: dict[str, list[bool]] = {}
    for test in yaml.safe_load(cases.read_text())["tests"]:
        for case in test.get("alert_rule_test", ()):
            asked.setdefault(case["alertname"], []).append(bool(case["exp_alerts"]))
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert asked.keys() == names
    assert all(set(fires) == {False, True} for fires in asked.values())


def test_the_queries_of_the_dashboard_and_of_the_page_return_series(
    monitoring: Path, prometheus: str, repository: Path
) -> None:
    values = {"$namespace": "a", "$__rate_interval": "5m", "$__range": "1h"}
    page = (repository / "docs" / "platform.md").read_text()
    queries = _panels(monitoring)
    queries += [("docs/platform.md", it) for it in re.findall(r"```promql\n(.*?)```", page, re.S)]
    assert queries[-1][0] == "docs/platform.md"
    for title, query in queries:
        for name, value in values.items():
            query = query.replace(name, value)
        found = _answer(prometheus + urllib.parse.quote(query))
        assert found, f"{title}: {query}"
        if hours := {"GPU-hours in the selected time": 1, "docs/platform.md": 2}.get(title):
            assert [float(it["value"][1]) for it in found] == [pytest.approx(hours, abs=0.02)]


def test_the_metrics_of_the_server_exist(monitoring: Path, repository: Path) -> None:
    source = (repository / "kfp_tfjob" / "serving" / "metrics.py").read_text()
    text = (monitoring / "rules.yaml").read_text() + (monitoring / "dashboard.json").read_text()
    for name in set(re.findall(r"\bkfp_tfjob_(?!run|model\b)\w+", text)):
        assert f'"{re.sub(r"_(total|bucket)$", "", name)}"' in source, name
