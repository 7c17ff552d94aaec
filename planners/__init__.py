"""Planners that search in any world model."""
