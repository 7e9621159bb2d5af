"""The typed form of a run's parameters, which each process builds once, before it uses any of them.

Kubeflow Pipelines and the command line deliver strings and dicts. Code that passes these on checks
and converts the same value in several places, and each place may report another problem. So
`RunPlan.parse` is the only reader of the raw parameters, it reports all problems in one error, and
later functions take the part of the plan that they need. A plan is never stored: steps pass each
other the raw parameters, so a plan may change with the code.

Parsing needs no network and no cluster, so `kfp-tfjob run`, `submit` and `render` check parameters
with it on the user's machine before anything starts. Preflight repeats that in the cluster, because
a run can also be started from the UI. Called by preflight's `engine.py` and by the commands in
pipelines/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import address_fields
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.options.gate import GateOptions, parse_gate
from kfp_tfjob.options.no_data import has_data, run_problems
from kfp_tfjob.options.parameter_masking import plain_secrets
from kfp_tfjob.options.parameters import PARAMETERS, RunParameters
from kfp_tfjob.options.parse import parse, unknown_key
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import check_endpoint
from kfp_tfjob.user_code.model_code import ModelCode


@dataclass(frozen=True)
class Output:
    """Where a run stores its output.

    Attributes:
        uri: The run parameter output_uri; it may contain fields.
        endpoint: The store's URL; empty for AWS or the endpoint in the Secret.
        region: The store's region; empty for the one in the Secret or the environment.
    """

    uri: str
    endpoint: str
    region: str

    @classmethod
    def of_run(cls, values: RunParameters) -> Output:
        """Return these three run parameters without checking them."""
        return cls(values["output_uri"], values["storage_endpoint"], values["storage_region"])


@dataclass(frozen=True)
class RunData:
    """The data that a run prepares.

    Attributes:
        uri: Its address; it may contain date fields.
        label: The column to predict; empty for images.
        options: The dict data_options.
    """

    uri: str
    label: str
    options: DataOptions

    def at(self, tick: Tick | None) -> RunData:
        """Return the data with the address's date fields filled in; without a tick, they stay."""
        return replace(self, uri=address_fields.fill(self.uri, tick))

    def digest(self, source_digest: str) -> str:
        """Return the digest of the dataset that is prepared from a source."""
        return self.options.dataset_digest(source_digest, self.label)


@dataclass(frozen=True)
class RunPlan:
    """The checked and typed parameters of a run.

    Attributes:
        parameters: The parameters as the user wrote them, for the page that shows them.
        output: Where the run stores its output.
        data: The data; None for a run without data.
        model_name: The name under which the model is published.
        model_code: The code that builds the model, or a user's own program.
        job: The training job. Values that a later step decides are valid placeholders.
        gate: The conditions under which a model is published; None to publish no model.
        secret_paths: The paths of parameters that look like secrets, such as `pod.all.env.TOKEN`.
    """

    parameters: RunParameters
    output: Output
    data: RunData | None
    model_name: str
    model_code: ModelCode
    job: JobSpec
    gate: GateOptions | None
    secret_paths: tuple[str, ...]

    @property
    def evaluates(self) -> bool:
        """Whether the run's model is evaluated, which needs test rows and so a dataset."""
        return self.job.options.evaluate and self.data is not None

    @property
    def contract(self) -> Contract:
        """How far the data may differ from the champion's data."""
        return self.data.options.contract if self.data else Contract()

    @property
    def dated_addresses(self) -> dict[str, str]:
        """The addresses that may contain date fields, by parameter."""
        return {"data_uri": self.data.uri if self.data else "", "output_uri": self.output.uri}

    @classmethod
    def parse(cls, values: RunParameters) -> RunPlan:
        """Parse all run parameters without access to anything outside this process.

        Raises:
            ConfigurationError: All problems, in one error.
        """
        problems = Problems(
            unknown_key("", key, PARAMETERS) for key in values if key not in PARAMETERS
        )
        problems += _missing_parameters(values)
        problems += run_problems(values)
        if values.get("output_uri"):
            problems.of(partial(_check_output, str(values["output_uri"])))
        problems += address_fields.check(
            str(values.get("data_uri", "")), "data_uri", address_fields.IN_DATA
        )
        if values.get("model_name"):
            problems += check_model_name(str(values["model_name"]))
        problems.of(lambda: check_endpoint(str(values.get("storage_endpoint", ""))))
        data_options = problems.of(
            lambda: parse(DataOptions, "data_options", values.get("data_options", {}))
        )
        gate = problems.of(lambda: parse_gate(values.get("gate", {})))
        model_code = problems.of(lambda: ModelCode.of_run(values))
        job = problems.of(lambda: job_spec(values))
        if problems or not (data_options and model_code and job):
            raise ConfigurationError(*problems)
        data = RunData(str(values["data_uri"]), values["data_label"], data_options)
        return cls(
            parameters=values,
            output=Output.of_run(values),
            data=data if has_data(values) else None,
            model_name=str(values["model_name"]),
            model_code=model_code,
            job=job,
            gate=gate,
            secret_paths=tuple(plain_secrets(values)),
        )


def job_spec(values: RunParameters) -> JobSpec:
    """Return the typed form of the parameters that the training job depends on.

    A parameter that is checked separately, or that only a later step can resolve, gets a valid
    placeholder.

    Raises:
        ConfigurationError: All problems of these parameters, in one error.
    """
    prefixes = ("storage_", "train_", "pod", "model_hyperparameters")
    job_parameters = {
        name: values[name] for name in values if name in PARAMETERS and name.startswith(prefixes)
    }
    return JobSpec.parse(
        output_uri="s3://bucket",
        model_name="model",
        model_entry="module:function",
        **job_parameters,
    )


def _missing_parameters(values: Mapping[str, object]) -> Iterator[Problem]:
    for name, parameter in PARAMETERS.items():
        if parameter.is_required and not str(values.get(name, "")).strip():
            yield Problem(
                f"{name} is missing",
                received="nothing",
                expected=parameter.words,
                fix=f"set {name}",
                path=name,
                name="missing-parameter",
            )


def _check_output(output_uri: str) -> None:
    """Check the address and its fields; commands on the user's machine replace `{user}` before."""
    layout = Layout.parse(output_uri)
    ConfigurationError.raise_if(
        address_fields.check(output_uri, "output_uri", address_fields.IN_FOLDER)
    )
    if address_fields.has_user(layout.template):
        raise ConfigurationError(
            Problem(
                "output_uri contains {user}, which the back end cannot fill in",
                received=repr(output_uri),
                expected="a name instead of {user}; kfp-tfjob run, submit and schedule fill it in",
                fix="write the name into output_uri, or start the run with one of these commands",
                path="output_uri",
            )
        )
