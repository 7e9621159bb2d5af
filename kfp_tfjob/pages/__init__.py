"""Renders HTML and Markdown pages from templates of the steps, with one style and set of plots."""
