"""The launch, the watchdog and the run directory."""
