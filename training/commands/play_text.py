"""``rlvr-world play`` for text games: a transcript, the dream's next states beside the truth's.

Special: dream and truth get the same first state and the same actions, and the dream goes on from its own states, so
the transcript shows where the world model goes wrong and what becomes of it.

Absent: films.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from training.commands.console import console, show_table

if TYPE_CHECKING:
    import gymnasium as gym

    from worldmodels.language.game_state import GameState

_SHOWN = 4  # changes in a line


def play_text(
    env_id: str,
    truth: gym.Env[str, str],
    dream: gym.Env[str, str] | None,
    policy: str,
    *,
    episodes: int,
    seed: int,
) -> None:
    """Act and print a transcript of each episode.

    Args:
        env_id: For headings.
        truth: The simulator.
        dream: The learned environment, or None.
        policy: ``random`` (any valid action), ``expert-replay`` (the solver), ``zero`` (waits).
        episodes: How many.
        seed: Of the first; the next has the next.
    """
    rows = []
    for number in range(seed, seed + episodes):
        lines, row = text_episode(truth, dream, policy, number)
        show_table(f"{env_id}, {policy} actions, seed {number}", ("action", "truth", "dream"), lines)
        rows.append(row)
    titles = ("seed", "game", "steps", "won in truth", "won in the dream", "right next states")
    show_table(f"{env_id}, {policy} actions", titles, rows)
    console.print("texts are not filmed; this is the transcript")


def text_episode(
    truth: gym.Env[str, str], dream: gym.Env[str, str] | None, policy: str, seed: int
) -> tuple[list[tuple[str, str, str]], tuple[Any, ...]]:
    """The lines of one episode's transcript, and its row of the table."""
    import numpy as np

    generator = np.random.default_rng(seed)
    observation, info = truth.reset(seed=seed)
    if dream is not None:
        _, dreamt = dream.reset(seed=seed, options={"observation": observation, "game": info["game"]})
    lines: list[tuple[str, str, str]] = []
    right = steps = 0
    dream_over = dream is None
    won = {"truth": False, "dream": False}
    truncated = terminated = False
    while not (terminated or truncated):
        action = _action(policy, info, generator)
        before = info["state"]
        _, _, terminated, truncated, info = truth.step(action)
        steps += 1
        won["truth"] = info["won"]
        said = ""
        if dream is not None and not dream_over:
            was = dreamt["state"]
            _, _, dream_over, _, dreamt = dream.step(action)
            agrees = dreamt["state"] == info["state"]
            right += agrees
            won["dream"] = dreamt["won"]
            said = "the same" if agrees else _changes(was, dreamt["state"])
            if dreamt["prediction_error"]:
                said = f"unreadable: {dreamt['prediction_error'][:60]}"
        lines.append((action, _changes(before, info["state"]), said))
    outcome = (seed, info["game"], steps, _yes(won["truth"]))
    if dream is None:
        return lines, (*outcome, "-", "-")
    return lines, (*outcome, _yes(won["dream"]), f"{right} of {steps}")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _changes(before: GameState, after: GameState) -> str:
    """What changed, in a few words."""
    from worldmodels.language.state_diff import difference

    facts = difference(before, after).facts()
    names: Mapping[Any, str] = {
        uuid: item["name"] for uuid, item in {**before.objects, **after.objects}.items()
    }
    shown = [
        " ".join([str(names.get(fact[0], fact[0])), *map(str, fact[1:]), f"= {value}"])[:70]
        for fact, value in list(facts.items())[:_SHOWN]
    ]
    more = [f"and {len(facts) - _SHOWN} more"] if len(facts) > _SHOWN else []
    return "\n".join([*shown, *more]) or "nothing"


def _action(policy: str, info: Mapping[str, Any], generator: Any) -> str:
    from rlvr_envs.simulators.text_games.catalogue import game_named
    from rlvr_envs.simulators.text_games.engine import advise

    if policy == "zero":
        return "wait"
    valid = info["valid_actions"]
    advice = advise(game_named(info["game"]), info["state"]) if policy == "expert-replay" else None
    return str(valid[int(generator.integers(len(valid)))] if advice is None else advice)
