"""The type of Kubernetes objects, and of their parts, as their JSON has them."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
