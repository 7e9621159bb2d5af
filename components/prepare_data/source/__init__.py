"""The source: its files, their digest, the columns of their header, and their readers."""
