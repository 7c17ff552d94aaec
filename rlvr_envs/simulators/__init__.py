"""Ground truth: hand-written simulators. No torch, no learned model."""
