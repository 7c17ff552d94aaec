"""Verifiable rewards: the metric in a table is the reward function."""
