"""Scores a model on the test rows, compares it with the champion, and gives the verdict."""
