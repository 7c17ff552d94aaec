"""Ground-truth text games: everything a game's future depends on is in its state's record."""
