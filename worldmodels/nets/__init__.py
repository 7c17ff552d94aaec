"""Pure ``nn.Module`` building blocks: no checkpoints, no data, no sampling."""
