"""The first step: finds every mistake it can before the run costs anything."""
