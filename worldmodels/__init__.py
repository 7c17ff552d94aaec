"""World models: predict the next observation."""
