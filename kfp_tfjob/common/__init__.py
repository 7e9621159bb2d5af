"""Code that every package uses: errors, escaping, formatting, names, atomic files, progress."""
