"""The crash-proof file in which one rank records what it does."""
