"""The files beside each component follow the conventions of kubeflow/pipelines-components."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import AnyHttpUrl, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from kfp_tfjob.components import STEPS
from kfp_tfjob.pipelines.compilation import FOLDER
from tests.component_examples import compile_example
from tests.docs.blocks import ROOT, blocks_of
from tests.unit.compiled_rules import broken, parts_of

_Name = Annotated[str, StringConstraints(pattern=r"^\w.*$")]
_Version = Annotated[str, StringConstraints(pattern=r"^(>=|<=|==)?\d+\.\d+\.\d+$")]
_Tag = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Dependency(_Strict):
    name: _Name
    version: _Version  # `validate_metadata.py` there accepts three numbers only


class Dependencies(_Strict):
    kubeflow: list[Dependency]
    external_services: list[Dependency] = []


class Metadata(_Strict):
    """What `scripts/validate_metadata` there accepts; the order of the fields counts."""

    name: _Name
    stability: Literal["experimental", "alpha", "beta", "stable"]
    dependencies: Dependencies
    tags: list[_Tag] = Field(min_length=1)
    lastVerified: AwareDatetime
    links: dict[_Tag, Annotated[AnyHttpUrl, Field(strict=False)]] = {}


@pytest.mark.parametrize("step", STEPS)
def test_metadata_has_the_shape_of_the_community(step: str) -> None:
    document = yaml.safe_load((ROOT / "components" / step / "metadata.yaml").read_text())
    metadata = Metadata.model_validate(document)
    assert metadata.name == step
    assert [name for name in Metadata.model_fields if name in document] == list(document)
    assert "Pipelines" in [dependency.name for dependency in metadata.dependencies.kubeflow]


@pytest.mark.parametrize("step", STEPS)
def test_the_example_of_a_readme_compiles(step: str, tmp_path: Path) -> None:
    text = compile_example(step, FOLDER, tmp_path).read_text()
    assert broken(text) == []
    pipeline, _ = parts_of(text)
    names = {body.get("executorLabel") for body in pipeline["components"].values()}
    assert f"exec-{step.replace('_', '-')}" in names
    required = {
        name
        for name, item in pipeline["root"]["inputDefinitions"]["parameters"].items()
        if not item.get("isOptional")
    }
    assert required <= {"data_uri", "data_label", "model_name", "output_uri"}


@pytest.mark.parametrize("step", STEPS)
def test_a_readme_begins_with_what_a_newcomer_needs(step: str) -> None:
    readme = ROOT / "components" / step / "README.md"
    lines = readme.read_text().splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    assert lines[0] == f"# {step}" and len(lines[2].split()) >= 5
    assert titles[:4] == ["## Install", "## Example", "## Inputs", "## Outputs"]
    (install,) = [block.text for block in blocks_of(readme) if "pip install" in block.text]
    assert install.count("\n") == 1
