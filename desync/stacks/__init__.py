"""Stacks of the ranks: taken, parsed, merged."""
