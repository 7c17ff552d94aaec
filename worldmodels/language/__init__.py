"""Text games: states, their differences, prompts and answers."""
