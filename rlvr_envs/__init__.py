"""Gymnasium environments over learned world models, and their ground truth."""
