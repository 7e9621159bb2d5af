"""HTML and Markdown pages: one shell, one style sheet, one set of plots. Steps bring templates."""
