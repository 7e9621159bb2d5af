"""The context of the images, and the references that `compile` takes from `make images PUSH=1`."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from images.build import BASE, IMAGES, ROOT, Builder, requirements
from images.build import main as make_images
from kfp_tfjob.checks.step_pods import KEYS
from kfp_tfjob.options.images import PLACEHOLDER, VERSION, serving_in, tools_in
from kfp_tfjob.pipelines import references as module
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import images_of
from kfp_tfjob.pipelines.references import References
from kfp_tfjob.pipelines.step_resources import DEFAULTS
from kfp_tfjob.storage.errors import ConfigurationError

DIGEST = "sha256:" + 64 * "a"


@pytest.mark.parametrize("name", IMAGES)
def test_every_requirement_is_locked_with_hashes(name: str) -> None:
    wheels, sdists = requirements(IMAGES[name].extra)
    lines = [line for line in (wheels + sdists).splitlines() if not line.startswith(" ")]
    assert len(lines) > 40 and all("==" in line for line in lines)
    assert (wheels + sdists).count("--hash=sha256:") >= len(lines)
    sources = [line.partition("==")[0] for line in sdists.splitlines() if "==" in line]
    assert sources == ([] if name == "serving" else ["kfp-server-api"])


def test_only_the_image_for_gpus_has_cuda() -> None:
    found = {name: "nvidia-cudnn" in requirements(it.extra)[0] for name, it in IMAGES.items()}
    assert found == {"tools": False, "trainer": False, "trainer-gpu": True, "serving": False}
    assert "tensorflow==" not in requirements("tools")[0]


def test_no_build_argument_can_leave_a_password_in_the_history() -> None:
    for name in {image.containerfile for image in IMAGES.values()}:
        found = re.findall(r"^ARG (\w+)", (ROOT / "images" / name).read_text(), re.MULTILINE)
        assert set(found) <= {"BASE", "ACCELERATOR", "SOURCE_DATE_EPOCH"}


def test_the_version_of_the_images_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    for name in {image.containerfile for image in IMAGES.values()}:
        assert f"ARG BASE={BASE}\n" in (ROOT / "images" / name).read_text()


def test_the_manifests_of_servers_name_the_images_of_this_version() -> None:
    folder = ROOT / "deploy" / "serving"
    found = {
        (item["newName"], item["newTag"])
        for file in folder.glob("*/kustomization.yaml")
        for item in yaml.safe_load(file.read_text()).get("images", ())
        if item["name"].startswith("kfp-tfjob-")
    }
    images = {tools_in(PLACEHOLDER), serving_in(PLACEHOLDER)}
    assert found == {tuple(image.rsplit(":", 1)) for image in images}


def test_a_builder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigurationError, match="builder"):
        Builder.find()
    assert make_images(["--builder", "kaniko"]) == 2
    assert "buildah" in capsys.readouterr().err


def test_a_push_needs_a_registry(capsys) -> None:
    assert make_images(["--push"]) == 2
    assert "REGISTRY=" in capsys.readouterr().err


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> References:
    """What `make images PUSH=1` leaves in a checkout."""
    file = tmp_path / "references.json"
    monkeypatch.setattr(module, "REFERENCES", file)
    found = References.by_tag("r.example.com/me")
    images = {name: f"{image}@{DIGEST}" for name, image in found.images.items()}
    found = References(VERSION, "r.example.com/me", images)
    found.write(file)
    return found


def compiled(folder: Path, *arguments: str) -> tuple[str, list[str]]:
    done = CliRunner().invoke(main, ["compile", "--output", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return done.output, images_of((folder / "tfjob_training.yaml").read_text())


def test_compile_takes_the_digests_of_the_registry(pushed: References, tmp_path: Path) -> None:
    said, images = compiled(tmp_path / "a", "--registry", "r.example.com/me/", "--gpu")
    wanted = sorted(image for name, image in pushed.images.items() if name != "serving")
    assert images == wanted and "note" not in said


def test_compile_takes_images_and_resources(pushed: References, tmp_path: Path) -> None:
    resources = ["--step-resources", "evaluate.cpu_limit=2", "--step-resources", "all.cpu=1"]
    other = ["--registry", "other.example.com", "--tools-image", "tools:1", *resources]
    said, images = compiled(tmp_path, *other)
    assert images == [f"other.example.com/kfp-tfjob-trainer:{VERSION}", "tools:1"]
    assert "other.example.com" in said and "make images PUSH=1" in said
    text = (tmp_path / "tfjob_training.yaml").read_text()
    assert text.count("resourceCpuRequest: '1'") == len(DEFAULTS) - len(KEYS)
    assert text.count("cpu: '1'") == len(KEYS)  # which preflight returns
    assert text.count("resourceCpuLimit: '2'") == 1


def test_compile_names_the_registry_of_references_without_digests(tmp_path: Path) -> None:
    file = tmp_path / "references.json"
    References.by_tag("r.example.com/me").write(file)
    said, _ = compiled(tmp_path, "--references", str(file))
    assert "r.example.com/me" in said


def test_references_of_another_version_are_not_used(tmp_path: Path, pushed: References) -> None:
    old = tmp_path / "old.json"
    References("0.0.1", pushed.registry, pushed.images).write(old)
    with pytest.raises(ConfigurationError, match="old.json"):
        References.in_registry(pushed.registry, old)
    with pytest.raises(ConfigurationError, match="none.json"):
        References.in_registry("", tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="trainer-gpu"):
        References(VERSION, "r", {"tools": "t"}).image("trainer-gpu")


def test_wrong_resources_are_named_all_at_once(tmp_path: Path) -> None:
    said = ["eval.cpu=1", "evaluate.mem=8Gi", "evaluate.cpu=0", "publish.memory=512", "finish"]
    options = [word for setting in said for word in ("--step-resources", setting)]
    done = CliRunner().invoke(main, ["compile", "--output", str(tmp_path), *options])
    assert done.exit_code == 2 and "5 problems" in done.output
    assert "Fix: --step-resources evaluate.memory=8Gi" in done.output
    assert list(tmp_path.iterdir()) == []
