"""The context of the images, and the digests that `compile` takes from `make images PUSH=1`."""

import configparser
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from images.build import BASE, IMAGES, ROOT, Builder, requirements
from images.build import main as make_images
from kfp_tfjob.checks.step_pods import KEYS
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.options.container_images import (
    PLACEHOLDER,
    VERSION,
    Reference,
    serving_in,
    tools_in,
    trainer_in,
)
from kfp_tfjob.pipelines import compilation as module
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.commands.compile import compile_
from kfp_tfjob.pipelines.compilation import images_of
from kfp_tfjob.pipelines.kubeflow.package import Package
from kfp_tfjob.pipelines.step_resources import DEFAULTS
from tests.problems import problem_of

DIGEST = "sha256:" + 64 * "a"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("t", ("docker.io", "library/t", "", "")),
        ("t:5000", ("docker.io", "library/t", "5000", "")),
        ("team/t", ("docker.io", "team/t", "", "")),
        ("index.docker.io/t:1", ("docker.io", "library/t", "1", "")),
        ("localhost/t", ("localhost", "t", "", "")),
        ("Team/t", ("Team", "t", "", "")),  # the grammar takes uppercase for a host
        (
            "reg.example:5000/a.b/c__d--e_f:V.1-x",
            ("reg.example:5000", "a.b/c__d--e_f", "V.1-x", ""),
        ),
        ("[fd00::1]:5000/t:_1", ("[fd00::1]:5000", "t", "_1", "")),
        ("my_reg.io/t:1", ("", "my_reg.io/t", "1", "")),
        (f"reg/t:1@{DIGEST}", ("docker.io", "reg/t", "1", DIGEST)),
        (f"t@sha512:{128 * '0'}", ("docker.io", "library/t", "", f"sha512:{128 * '0'}")),
        (f"r.io/{255 * 'a'}:{128 * 'b'}", ("r.io", 255 * "a", 128 * "b", "")),
    ],
)
def test_a_reference_has_the_parts_that_a_node_sees(text: str, parts: tuple[str, ...]) -> None:
    its = Reference.parse(text)
    assert (its.domain, its.path, its.tag, its.digest) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://reg/t:1",
        "reg:port/t",
        "my_reg:5000/t",
        "reg-.io/t",
        "[fe80::1%eth0]/t",
        "reg.io/",
        "reg//t:1",
        "_reg/t:1",
        "reg/t-",
        "reg/t..x:1",
        "reg/a___b",
        "reg.io/Team/t",
        "reg/t x",
        "reg/\u0665:1",
        "reg/t:",
        "reg/t:-x",
        "reg/t:.x",
        "reg/t:\u0665",
        f"reg/t:{129 * 'a'}",
        "reg/t@",
        "reg/t@sha256:abc",
        f"reg/t@{DIGEST}a",
        f"reg/t@{DIGEST.upper()}",
        f"reg/t@sha256:{64 * 'A'}",
        f"reg/t@md5:{32 * 'a'}",
        f"reg/t@sha512:{64 * 'a'}",
        f"reg/t:1@{DIGEST}\n",
        f"reg.io/{256 * 'a'}",
        64 * "a",
    ],
)
def test_a_reference_that_no_node_can_parse_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Reference.parse(text)


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


def instructions(name: str, keyword: str) -> list[str]:
    """Return the arguments of a Containerfile's instructions of one kind."""
    text = (ROOT / "images" / name).read_text().replace("\\\n", " ")
    return re.findall(rf"^{keyword} (.+)", text, re.MULTILINE)


def test_an_image_finds_the_driver_and_sees_only_the_gpus_of_its_pod() -> None:
    for name in {image.containerfile for image in IMAGES.values()}:
        (line,) = instructions(name, "ENV")
        variables = dict(word.split("=", 1) for word in line.split())
        assert "NVIDIA_VISIBLE_DEVICES" not in variables
        if name == "trainer.Containerfile":
            assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
            first, _, base = variables["LD_LIBRARY_PATH"].partition("$")
            assert first == "/usr/local/nvidia/lib64"
            assert base == "{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder into which docker's stand-in copies the secrets of a build."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (tmp_path / "docker").write_text(
        "#!/bin/sh\n"
        "for word; do\n"
        "    case $word in --secret=id=*)\n"
        "        secret=${word#--secret=id=}\n"
        f'        cp "${{secret#*,src=}}" {folder}/"${{secret%%,*}}"\n'
        "    esac\n"
        "done\n"
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:password@pypi.example.com/simple")
    monkeypatch.delenv("PIP_CERT", raising=False)
    return folder


def pip_settings(secrets: Path) -> dict[str, str]:
    """Return the settings in the pip.conf of a build."""
    parser = configparser.RawConfigParser()
    parser.read(secrets / "pip")
    return dict(parser["global"])


def test_a_build_gets_the_certificates_of_its_package_index(
    secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Builder(["docker"]).build("tools", "r.io/t:1", tmp_path)
    index = {"index-url": "https://user:password@pypi.example.com/simple"}
    assert [path.name for path in secrets.iterdir()] == ["pip"]
    assert pip_settings(secrets) == index
    (tmp_path / "own.pem").write_text("certificates")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "own.pem"))
    Builder(["docker"]).build("tools", "r.io/t:1", tmp_path)
    assert pip_settings(secrets) == index | {"cert": "/run/secrets/pip-cert"}
    assert (secrets / "pip-cert").read_text() == "certificates"


def test_every_containerfile_mounts_what_pip_needs() -> None:
    for name in {image.containerfile for image in IMAGES.values()}:
        (line,) = [it for it in instructions(name, "RUN") if "PIP_CONFIG_FILE" in it]
        assert re.findall(r"type=secret,id=([\w-]+)", line) == ["pip", "pip-cert"]


@pytest.mark.parametrize("name", ["missing.pem", "."])
def test_certificates_that_are_no_file_are_refused(
    secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / name))
    problem = problem_of(Builder(["docker"]).build, "tools", "r.io/t:1", tmp_path)
    assert problem.received == repr(str(tmp_path / name)) and "PIP_CERT" in problem.fix
    assert list(secrets.iterdir()) == []


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


def test_manifests_with_our_images_name_the_file_of_their_digests() -> None:
    files = (ROOT / "deploy").rglob("kustomization.yaml")
    texts = [text for text in map(Path.read_text, files) if "\nimages:\n" in text]
    ours = [text for text in texts if f"newName: {PLACEHOLDER}" in text]
    assert len(ours) == 5 and all("images/digests.json" in text for text in ours)


def test_a_builder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigurationError, match="builder"):
        Builder.find()
    assert make_images(["--builder", "kaniko"]) == 2
    assert "buildah" in capsys.readouterr().err


def test_docker_without_its_plugin_buildx_is_passed_over(tmp_path: Path, monkeypatch) -> None:
    for name, code in (("docker", 1), ("buildah", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Builder.find().kind == "buildah"


def test_a_push_needs_a_registry(capsys) -> None:
    assert make_images(["--push"]) == 2
    assert "REGISTRY=" in capsys.readouterr().err


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `make images PUSH=1` leaves in a checkout."""
    registry = "r.example.com/me"
    images = [tools_in(registry), trainer_in(registry), trainer_in(registry, gpu=True)]
    digests = dict.fromkeys(images, DIGEST)
    (tmp_path / "digests.json").write_text(json.dumps(digests))
    monkeypatch.setattr(module, "DIGESTS", tmp_path / "digests.json")
    return digests


def compiled(folder: Path, *arguments: str) -> tuple[str, list[str]]:
    done = CliRunner().invoke(main, ["compile", "--output", str(folder), *arguments])
    assert done.exit_code == 0, done.output
    return done.output, images_of((folder / "tfjob_training.yaml").read_text())


def test_compile_takes_the_digests_of_the_registry(pushed: dict[str, str], tmp_path: Path) -> None:
    said, images = compiled(tmp_path / "a", "--registry", "r.example.com/me/", "--gpu")
    assert images == sorted(f"{image}@{DIGEST}" for image in pushed) and "note" not in said


def test_compile_takes_images_and_resources(pushed: dict[str, str], tmp_path: Path) -> None:
    resources = ["--step-resources", "evaluate.cpu_limit=2", "--step-resources", "all.cpu=1"]
    other = ["--registry", "other.example.com", "--tools-image", "tools:1", *resources]
    said, images = compiled(tmp_path, *other)
    assert images == [f"other.example.com/kfp-tfjob-trainer:{VERSION}", "tools:1"]
    assert "other.example.com" in said and "tools:1" in said and "make images PUSH=1" in said
    text = (tmp_path / "tfjob_training.yaml").read_text()
    assert text.count("resourceCpuRequest: '1'") == len(DEFAULTS) - len(KEYS)
    assert text.count("cpu: '1'") == len(KEYS)  # which preflight returns
    assert text.count("resourceCpuLimit: '2'") == 1


@pytest.mark.parametrize(
    ("registry", "suggestion"),
    [("ghcr.io/MyTeam", "ghcr.io/myteam"), ("https://ghcr.io/me", "ghcr.io/me"), ("_me", "")],
)
def test_a_wrong_registry_is_neither_compiled_in_nor_built_for(
    tmp_path: Path, capsys, registry: str, suggestion: str
) -> None:
    command = ["--output", str(tmp_path), "--registry", registry]
    problem = problem_of(compile_.main, command, standalone_mode=False)
    assert (problem.path, problem.suggestion) == ("--registry", suggestion)
    assert list(tmp_path.iterdir()) == []
    assert make_images(["--registry", registry]) == 2
    assert repr(registry) in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tools-image", "--trainer-image", "--train-image"])
def test_an_image_that_no_node_can_parse_is_not_compiled_in(tmp_path: Path, option: str) -> None:
    command = ["--output", str(tmp_path), option, "reg/t:-x"]
    problem = problem_of(compile_.main, command, standalone_mode=False)
    assert (problem.path, problem.received) == (option, "'reg/t:-x'")
    assert list(tmp_path.iterdir()) == []


def test_a_compiled_image_that_no_node_can_parse_is_not_submitted() -> None:
    container = {"image": "reg/t..x:1"}
    executors = {"exec-preflight": {"container": container}}
    package = Package("a file", {"pipeline_spec": {"deploymentSpec": {"executors": executors}}})
    (problem,) = package.problems("reg/t:1")
    assert problem.received == "'reg/t..x:1'"


@pytest.mark.parametrize(
    ("pushed", "printed"),
    [
        ("r.example.com:5000/me/t:1", "r.example.com:5000/me/t"),
        ("docker.io/me/t:1", "me/t"),  # docker omits the domain of Docker Hub
    ],
)
def test_docker_names_the_digest_of_what_it_pushed(
    tmp_path: Path, monkeypatch, pushed: str, printed: str
) -> None:
    other = f"other.example.com/me/t@sha256:{64 * 'b'}"
    (tmp_path / "docker").write_text(f"#!/bin/sh\nprintf '{other}\\n{printed}@{DIGEST}\\n'\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Builder(["docker"]).push(pushed) == DIGEST


def test_wrong_resources_are_named_all_at_once(tmp_path: Path) -> None:
    said = ["eval.cpu=1", "evaluate.mem=8Gi", "evaluate.cpu=0", "publish.memory=512", "finish"]
    options = [word for setting in said for word in ("--step-resources", setting)]
    done = CliRunner().invoke(main, ["compile", "--output", str(tmp_path), *options])
    assert done.exit_code == 2 and "5 problems" in done.output
    assert all(setting in done.output for setting in said)
    assert list(tmp_path.iterdir()) == []
