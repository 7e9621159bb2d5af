"""Renders pages from templates, and makes every value safe for the page.

A template is a file `NAME.html.j2` or `NAME.md.j2` next to the module that fills it. Its name is
its path in this package. HTML templates extend `pages/base.html.j2`, so a page works without
scripts and offline, and follows light and dark mode. Called by the reports of all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_eval_context
from jinja2.nodes import EvalContext
from markupsafe import Markup

from kfp_tfjob.common import escaping

_ROOT = Path(__file__).resolve().parents[1]


class Markdown(str):
    """Text that is already Markdown."""


def render(template: str, /, **values: Any) -> str:
    """Return a page.

    `common.escaping` makes text safe: it shows control characters, limits the length and escapes
    markup. Only `Markup` (HTML) and the results of `code`, `prose`, `row` and `digits` (Markdown)
    are used unchanged.

    Args:
        template: For example, `components/evaluate/report.html.j2`.
        values: The values that the template uses; a missing one is an error.
    """
    return _ENVIRONMENT.get_template(template).render(values)


def _is_html(template: str | None) -> bool:
    return template is None or not template.endswith(".md.j2")


@pass_eval_context
def _safe(context: EvalContext, value: Any) -> Any:
    """Return the value of an expression in a form that is safe for the page."""
    if isinstance(value, Markup if context.autoescape else Markdown):
        return value
    if context.autoescape:
        return Markup(escaping.html(value))
    return escaping.prose(value)


def _marked(function: Callable[..., str]) -> Callable[..., Markdown]:
    return lambda *arguments: Markdown(function(*arguments))


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_ROOT),
    autoescape=_is_html,
    finalize=_safe,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "code": _marked(escaping.code),
    "prose": _marked(escaping.prose),
    "digits": _marked("{:.6g}".format),
    "short": escaping.short,
    "count": "{:,}".format,
}
_ENVIRONMENT.globals["row"] = _marked(escaping.row)
