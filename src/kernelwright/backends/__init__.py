"""Who takes what the passes made, besides the emitted file: torch.compile."""
