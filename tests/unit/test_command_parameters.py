"""Where run parameters of the command line come from, and what a wrong option is answered with."""

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.components.preflight.plan import RunPlan
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines.commands.parameters import VARIABLE, parameters_of
from tests.problems import problem_of, problems_of

NONE = {"settings": (), "file": None}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PARAMETERS:
        monkeypatch.delenv(f"{VARIABLE}{name.upper()}", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def values_of(file: Path, text: str) -> dict[str, Any]:
    """Return the parameters of a file with this text."""
    file.write_text(text)
    return parameters_of(NONE | {"file": file}).values


def test_each_source_overrides_the_one_before(file, monkeypatch):
    file.write_text("train_epochs: 1\ntrain_gpus: 1\ntrain_workers: 1\ndata_label: y\n")
    monkeypatch.setenv("KFP_TFJOB_TRAIN_EPOCHS", "2")
    monkeypatch.setenv("KFP_TFJOB_TRAIN_WORKERS", "2")
    monkeypatch.setenv("KFP_TFJOB_TRAIN_OPTIONS", '{"seed": 7}')
    given = {"file": file, "train_epochs": 3, "settings": ("train_epochs=4", "gate.mode=absolute")}
    found = parameters_of(given, here=False)
    wanted = {"train_epochs": 4, "train_workers": 2, "train_gpus": 1, "data_label": "y"}
    assert {name: found.values[name] for name in wanted} == wanted
    assert found.values["train_options"] == {"seed": 7}
    assert found.values["gate"] == PARAMETERS["gate"].default | {"mode": "absolute"}
    assert found.sources == {
        "train_epochs": "--set",
        "train_workers": "KFP_TFJOB_TRAIN_WORKERS",
        "train_options": "KFP_TFJOB_TRAIN_OPTIONS",
        "train_gpus": str(file),
        "data_label": str(file),
        "gate": "--set",
    }
    assert set(found.values) == set(PARAMETERS)


def test_a_file_may_be_json(tmp_path):
    pod = {"all": {"cpu": "2"}}
    assert values_of(tmp_path / "run.json", json.dumps({"pod": pod}))["pod"] == pod


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n\t"data_label": "y",\n\t"train_epochs": 3\n}', {"data_label": "y", "train_epochs": 3}),
        (json.dumps({"data_label": "Größe😀"}), {"data_label": "Größe😀"}),
        ('{"data_uri": "s3:\\/\\/b\\/p"}', {"data_uri": "s3://b/p"}),
        ('\ufeff{"data_label": "y"}', {"data_label": "y"}),
        (
            '{"model_name": 1.10, "data_label": true, "storage_region": null}',
            {"model_name": "1.10", "data_label": "true", "storage_region": ""},
        ),
        ('{data_label: y, "train_epochs": 3}', {"data_label": "y", "train_epochs": 3}),  # YAML
    ],
    ids=["tabs", "emoji", "slashes", "mark", "strings", "yaml"],
)
def test_json_is_read_as_json(file, text, expected):
    assert values_of(file, text).items() >= expected.items()


@pytest.mark.parametrize("text", ['{"data_label": "\\ud83d"}', 'data_label: "\\ud83d"'])
def test_half_an_emoji_is_refused(file, text):
    file.write_text(text)
    assert "surrogates" in problem_of(parameters_of, NONE | {"file": file}).received


def test_a_parameter_without_a_value_has_its_default(file):
    """`data_uri:` was a TypeError, and `pod:` made --set pod.all.cpu an error."""
    file.write_text("data_uri:\npod:\ngate:\n#  mode: point\n")
    parameters = parameters_of({"file": file, "settings": ("pod.all.cpu=2",)})
    assert parameters.values["data_uri"] == "" and parameters.values["model_name"] == "model"
    assert parameters.values["pod"] == {"all": {"cpu": 2}}
    assert parameters.values["gate"] == PARAMETERS["gate"].default
    assert parameters.sources == {"pod": "--set"}


@pytest.mark.parametrize("name", ["data_uri", "model_code", "output_uri", "storage_region"])
def test_a_list_is_no_string(file, name):
    file.write_text(f"{name}: [s3://bucket/a, s3://bucket/b]\n")
    problem = problem_of(parameters_of, NONE | {"file": file})
    assert problem.path == name and "s3://bucket/b" in problem.received


def test_a_key_of_a_value_that_is_no_dict_is_reported_with_that_value(file):
    file.write_text("pod: 3\n")
    parameters = parameters_of({"file": file, "settings": ("pod.all.cpu=2",)})
    assert parameters.values["pod"] == 3
    assert "pod" in {problem.path for problem in problems_of(RunPlan.parse, parameters.values)}


def test_a_text_of_a_file_stays_as_it_is_written(file):
    written = {"data_label": "no", "model_name": "1.10", "storage_region": "2026-01-31"}
    text = "".join(f"{name}: {text}\n" for name, text in written.items()) + "data_uri:\n"
    assert values_of(file, text).items() >= written.items()


def test_yaml_changes_no_key_and_no_text_of_a_dict(file):
    """The class 1.10 was 1.1, 007 was 7, a date no text, 1:30 was 90, and 1e-3 no number."""
    text = (
        "model_hyperparameters: &base {no: 1, 007: 2}\n"
        "train_options: {class_weight: {<<: *base, 1.10: 3}}\n"
        "gate: {slices: [{column: day, edges: [2026-01-31]}]}\n"
        "data_options: {null_values: [010, 1:30, null, true, 1e-3, -.5, +7, ~]}\n"
    )
    found = values_of(file, text)
    assert found["train_options"] == {"class_weight": {"no": 1, "007": 2, "1.10": 3}}
    assert found["gate"] == {"slices": [{"column": "day", "edges": ["2026-01-31"]}]}
    assert found["data_options"] == {
        "null_values": ["010", "1:30", None, True, 0.001, -0.5, 7, None]
    }


def test_a_whole_number_is_an_int_however_it_is_written(file):
    file.write_text("train_gpus: 1.0\ntrain_options: {seed: 7.0}\n")
    settings = ("train_epochs=1e3", "train_batch_size=64.0", "train_workers=2.5")
    found = parameters_of({"file": file, "settings": settings}, here=False).values
    numbers = {name: found[name] for name in PARAMETERS if PARAMETERS[name].type is int}
    assert json.dumps(numbers) == json.dumps(
        {"train_workers": 2.5, "train_gpus": 1, "train_epochs": 1000, "train_batch_size": 64}
    )


def test_a_text_in_pod_stays_as_it_is_written():
    """The variable 1.10 was 1.1 in the pods, and a node selector chose no node."""
    secret = {"secret": "s", "key": "k"}
    texts = {"A": "1.10", "B": "1e3", "C": "True", "D": '"1.10"', "E": json.dumps(secret)}
    texts |= {"F": ".10", "G": "None", "H": "a=b"}
    settings = [f"pod.all.env.{name}={text}" for name, text in texts.items()]
    found = parameters_of({"settings": [*settings, "pod.all.cpu=2"]}, here=False).values["pod"]
    assert found == {"all": {"env": texts | {"D": "1.10", "E": secret}, "cpu": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("True", True),
        ("None", None),
        (".01", 0.01),
        ("-1.", -1.0),
        ("+7", 7),
        ("1.E-4", 1e-4),
        ("1.2.3", "1.2.3"),
        ("1_000", "1_000"),
        ("010", "010"),
        ("no", "no"),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_no_text_if_python_or_yaml_write_it_so(text: str, value: object):
    """As the text "False", a hyperparameter was true, and the text ".01" was no learning rate."""
    settings = (f"model_hyperparameters.x={text}",)
    found = parameters_of({"settings": settings}, here=False).values["model_hyperparameters"]
    assert found == {"x": value} and type(found["x"]) is type(value)


SECTION = '{"number": {"decimal": ","}}'


@pytest.mark.parametrize(
    ("setting", "parameter", "value"),
    [
        ("train_options.class_weight.<=50K=2", "train_options", {"class_weight": {"<=50K": 2}}),
        ("train_options.class_weight.1.0=3", "train_options", {"class_weight": {"1.0": 3}}),
        ("train_options.class_weight=balanced", "train_options", {"class_weight": "balanced"}),
        (
            "pod.all.node_selector.cloud.google.com/gke-accelerator=nvidia-tesla-t4",
            "pod",
            {"all": {"node_selector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}}},
        ),
        ("pod.all.env.A=b=c.d=e", "pod", {"all": {"env": {"A": "b=c.d=e"}}}),
        (
            "pod.all.affinity.nodeAffinity.a.b=1",
            "pod",
            {"all": {"affinity": {"nodeAffinity": {"a": {"b": "1"}}}}},
        ),
        ("pod.all.volumes.0.path=/x", "pod", {"all": {"volumes": {"0": {"path": "/x"}}}}),
        ("data_options.types.Sepal.Length=number", "data_options", {"Sepal.Length": "number"}),
        (f"data_options.types.a.b={SECTION}", "data_options", {"a.b": json.loads(SECTION)}),
        ("data_options.types.a.b.number.decimal=,", "data_options", {"a.b": json.loads(SECTION)}),
        ("data_options.types.city=Ulm=category", "data_options", {"city=Ulm": "category"}),
        ("data_options.types.d.date=%Y=%m=%d", "data_options", {"d": {"date": "%Y=%m=%d"}}),
        ("data_options.missing.a.b.rule=drop", "data_options", {"a.b": {"rule": "drop"}}),
        ("data_options.missing.a.rul=drop", "data_options", {"a": {"rul": "drop"}}),
        ("gate.thresholds.recall/1.0.min=0.5", "gate", {"recall/1.0": {"min": 0.5}}),
        ("gate.thresholds.recall/<=50K.min=0.5", "gate", {"recall/<=50K": {"min": 0.5}}),
        ("gate.thresholds.auc.mn=0.5", "gate", {"auc": {"mn": 0.5}}),
    ],
)
def test_a_name_with_a_dot_or_an_equals_sign_is_one_key(setting, parameter, value):
    """`<=50K` gave the class `<` a weight, and the column Sepal.Length was Sepal."""
    found = parameters_of({"settings": (setting,)}, here=False).values[parameter]
    if parameter in ("data_options", "gate"):
        found = found[setting.split(".")[1]]
    assert found == value


def test_settings_of_names_with_dots_add_up():
    settings = ("train_options.class_weight.<=50K=2", "train_options.class_weight.>50K=0.5")
    found = parameters_of({"settings": settings}, here=False).values["train_options"]
    assert found == {"class_weight": {"<=50K": 2, ">50K": 0.5}}


def test_a_key_that_stands_twice_is_refused(file):
    with pytest.raises(ConfigurationError, match="line 5"):
        values_of(
            file, "pod: {all: {cpu: 1}}\ngate:\n  mode: absolute\n  margin: 0\n  mode: superior"
        )
    with pytest.raises(ConfigurationError, match="gate"):
        parameters_of({"settings": ('gate={"mode": "absolute", "mode": "superior"}',)})
    file.write_text('{"gate": {"mode": "absolute", "margin": 0, "mode": "superior"}}')
    assert problem_of(parameters_of, NONE | {"file": file}).received == "mode"


DEEP = f"{'[' * 20_000}{']' * 20_000}"
NOT_PARAMETERS = ["a: [", "- 1", "train_epoch: 3", "\xff", "gate: &a {x: *a}"]
NOT_PARAMETERS += [pytest.param(f"gate: {DEEP}", id="deep")]


@pytest.mark.parametrize("text", NOT_PARAMETERS)
def test_a_file_with_anything_else_is_refused(file, text):
    file.write_bytes(text.encode("latin-1"))
    problem = problem_of(parameters_of, NONE | {"file": file})
    assert problem.suggestion == ("train_epochs" if text.startswith("train") else "")


def test_a_setting_that_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(ConfigurationError, match="gate"):
        parameters_of(NONE | {"settings": (f"gate={DEEP}",)})


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("KFP_TFJOB_GATE", "none")
    assert "KFP_TFJOB_GATE" in problem_of(parameters_of, NONE).what


def test_the_environment_does_not_change_a_continued_run(monkeypatch):
    monkeypatch.setenv("KFP_TFJOB_TRAIN_EPOCHS", "2")
    assert parameters_of(NONE).values["train_epochs"] == 2
    found = parameters_of(NONE, {"train_epochs": 5}, environment={})
    assert found.values["train_epochs"] == 5


def test_the_batch_size_is_that_of_the_form(file):
    given = values_of(file, "train_batch_size: 10\ntrain_workers: 2\n")
    assert given["train_batch_size"] == 10
    assert parameters_of(NONE | {"train_workers": 2}).values["train_batch_size"] == 0
