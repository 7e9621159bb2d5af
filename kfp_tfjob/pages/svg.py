"""Writes the elements of an inline SVG; text on it stays text.

Called by the modules of this package that draw.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from kfp_tfjob.common.escaping import line


def drawing(label: str, width: float, height: float) -> ElementTree.Element:
    """Return an empty drawing of this size in pixels; the label is for people who cannot see it."""
    svg = ElementTree.Element("svg", viewBox=f"0 0 {width:g} {height:g}", role="img")
    svg.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "aria-label": line(label)}
    return svg


def add(
    parent: ElementTree.Element, tag: str, text: str = "", **attributes: Any
) -> ElementTree.Element:
    """Add an element; `text_anchor` is the attribute `text-anchor`, `class_` is `class`."""
    child = ElementTree.SubElement(parent, tag)
    for name, value in attributes.items():
        attribute = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        child.set(name.rstrip("_").replace("_", "-"), attribute)
    child.text = line(text) or None
    return child


def markup(svg: ElementTree.Element) -> Markup:
    """Return a drawing as a part of a page."""
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
