"""Why a step failed: the content of failure.json.

`message` has everything as text. Pages, notifications and `kfp-tfjob why` use the other fields,
because a value that a message quotes may contain any words, such as `Fix:`. Called by every step
that fails, and by the exit task, notifications and commands, which read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.common.errors import LABELS, Example, Problem, StepError
from kfp_tfjob.storage import documents
from kfp_tfjob.supervisor.exit_codes import SURPASSED, USER_ERRORS

_IN_LOG = "failure.json "  # begins the log line that holds a record
_MOST_IN_LOG = 8000  # characters of a message; leaves space for the fields in a line of the log
_LONGEST_LINE = 60 << 10  # bytes: a log is read in lines of at most 64 KiB


@dataclass(frozen=True)
class FailedProblem:
    """One thing that was wrong; every part is fit for one line.

    Attributes:
        what: What is wrong, without a full stop.
        received: The value that was given.
        expected: What would be right.
        fix: What to do.
        path: The parameter that is wrong, down to the key; empty if it is not a parameter.
        examples: Where it is wrong, for example rows of a table.
        name: Its stable name; empty if docs/failures.md does not explain it.
    """

    what: str
    received: str | None = None
    expected: str | None = None
    fix: str = ""
    path: str = ""
    examples: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Failure:
    """The content of failure.json. An earlier version stored only the first four keys.

    Its `name` and `docs` are empty in a record of an earlier version; `docs_address` works for all.

    Attributes:
        step: The step that failed.
        code: The exit code (docs/failures.md, "Exit codes").
        verdict: One word for what happened, for programs.
        message: What is wrong, what was received, what was expected, what to do.
        fix: What to do, for all problems.
        problems: Each problem in its parts.
        last_lines: The last lines of the replica that failed first.
        notes: Sentences after the problems, for example warnings.
        name: The first problem's stable name; the verdict, if no problem has one.
        docs: The address of the page's section about `name`, where the step looked for it.
    """

    step: str
    code: int
    verdict: str
    message: str
    fix: str = ""
    problems: tuple[FailedProblem, ...] = ()
    last_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""
    docs: str = ""

    @classmethod
    def of(cls, step: str, error: StepError) -> Failure:
        """Return the record of an error of a step."""
        problems: list[FailedProblem] = []
        for problem in error.problems:
            if isinstance(problem, Example) and problems:
                examples = (*problems[-1].examples, str(problem))
                problems[-1] = replace(problems[-1], examples=examples)
            elif isinstance(problem, Problem):
                sentence, received, expected, fix = map(problem.parts.get, LABELS)
                problems.append(
                    FailedProblem(
                        what=sentence or "",
                        received=received,
                        expected=expected,
                        fix=fix or "",
                        path=problem.path,
                        name=problem.name,
                    )
                )
            else:
                problems.append(FailedProblem(problem))
        name = error.problem_name or error.verdict
        fixes = "; ".join(dict.fromkeys(failed.fix for failed in problems if failed.fix))
        return cls(
            step,
            error.code,
            error.verdict,
            message=str(error),
            fix=fixes,
            problems=tuple(problems),
            last_lines=error.last_lines,
            notes=error.remarks,
            name=name,
            docs=address_of(name),
        )

    @property
    def docs_address(self) -> str:
        """The address of the section that explains the failure."""
        return self.docs or address_of(self.name or self.verdict)

    @property
    def final(self) -> bool:
        """Whether a retry cannot help until the user changes something."""
        return self.code in (*USER_ERRORS, SURPASSED) or self.verdict == "user_error"

    @property
    def reason(self) -> str:
        """The message, but without the fix if there is exactly one problem."""
        if len(self.problems) != 1:
            return self.message
        problem = self.problems[0]
        examples = [f"    - {example}" for example in problem.examples]
        first = str(Problem(problem.what, problem.received, problem.expected))
        message = [first, *examples, *self.notes]
        if self.last_lines:
            message += ["Its last lines:", *(f"    {line}" for line in self.last_lines)]
        return "\n".join(message)

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return documents.to_bytes(self)

    def to_line(self) -> str:
        """Return the record as a log line, for an exit task that cannot read the store."""
        short = replace(self, message=self.message[:_MOST_IN_LOG])
        line = f"{_IN_LOG}{json.dumps(asdict(short))}"
        if len(line) > _LONGEST_LINE:
            # The message repeats the problems, so a person loses little without them.
            reduced = replace(short, fix="", problems=(), last_lines=(), notes=())
            line = f"{_IN_LOG}{json.dumps(asdict(reduced))}"
        return line

    @classmethod
    def from_bytes(cls, data: bytes) -> Failure:
        """Read a record back.

        Raises:
            InvalidDocumentError: It is not a record of a failure.
        """
        return documents.read(cls, data)

    @classmethod
    def from_line(cls, text: str) -> Failure | None:
        """Read a record back from a log line; None if the line is not a record."""
        if not text.startswith(_IN_LOG):
            return None
        try:
            return cls.from_bytes(text.removeprefix(_IN_LOG).encode())
        except documents.InvalidDocumentError:
            return None  # a program's own line may begin like a record
