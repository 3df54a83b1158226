"""The Report and its renderings."""
