"""Publishes a blessed model: a new version, and the pointer to the champion."""
