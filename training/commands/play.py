"""``rlvr-world play``: act in an environment and film it, the dream beside the truth where there is one.

Special: dream and truth get the same first observation, the same goal and the same actions, so that the film
shows where the world model goes wrong. Actions never depend on what is seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from training.commands.console import choose, console, show_table, use_threads, writable

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np
    from numpy.typing import NDArray

Behaviour = Literal["random", "expert-replay", "zero"]


def play(
    env_id: Positional[str],
    *,
    policy: Behaviour = "random",
    gif: Path = Path("play.gif"),
    episodes: int = 1,
    seed: int = 0,
    model: str | None = None,
    threads: int = 1,
) -> None:
    """Act in an environment and write a film of it.

    Args:
        env_id: For example RLVRWorld/PushT-v0; see 'rlvr-world list'.
        policy: random; zero, which stays; or expert-replay, actions that an expert has planned in the simulator, with
            the state it reached as the goal.
        gif: The film.
        episodes: How many, one after the other in the same film.
        seed: Of the first episode; the next has the next.
        model: World model of a dream instead of its default: bundled name, folder or hub id.
        threads: Threads to compute with.
    """
    use_threads(threads)
    if episodes < 1:
        raise ValueError(f"--episodes is {episodes}; it must be at least 1")
    import gymnasium
    from tqdm import tqdm

    import rlvr_envs
    from training.pictures import write_gif

    entry = choose("environment", env_id, rlvr_envs.ENVS)
    if model is not None and entry.twin is None:
        raise ValueError(f"--model is {model!r}, but {env_id} is a simulator and has no world model")
    writable(gif)
    truth = gymnasium.make(entry.twin or env_id, disable_env_checker=True)
    dream = None
    if entry.twin:
        settings: dict[str, Any] = {} if model is None else {"world_model": model}
        dream = gymnasium.make(env_id, disable_env_checker=True, **settings)
    pages: list[Any] = []
    rows = []
    for number in tqdm(range(episodes), desc="play", unit="episode"):
        film, row = _episode(truth, dream, policy, seed + number)
        pages += film
        rows.append(row)
    write_gif(gif, pages, frames_per_second=float(truth.metadata["render_fps"]))
    show_table(
        f"{env_id}, {policy} actions", ("seed", "steps", "reached in truth", "reached in the dream"), rows
    )
    console.print(f"film: {gif}")


def _episode(
    truth: gym.Env[Any, Any], dream: gym.Env[Any, Any] | None, policy: Behaviour, seed: int
) -> tuple[list[Any], tuple[Any, ...]]:
    """Pages of one episode, and its row of the table. It goes on after success, until it is truncated."""
    from training.pictures import side_by_side

    observation, info = truth.reset(seed=seed)
    actions, goal_state = _actions(policy, truth, info["state"], seed)
    if goal_state is not None:
        observation, info = truth.reset(seed=seed, options={"goal": goal_state})
    goal = info["goal"]
    reached: dict[str, str] = {"truth": "no", "dream": "no" if dream else "-"}
    worlds: dict[str, gym.Env[Any, Any]] = {"truth": truth}
    frames = {"truth": observation["image"]}
    if dream is not None:
        worlds["dream"] = dream
        start = {
            "observation": observation,
            "state": info["state"],
            "goal": {"state": info["goal_state"], "image": goal},
        }
        frames["dream"] = dream.reset(seed=seed, options=start)[0]["image"]
    pages = [side_by_side([*frames.values(), goal], [*frames, "goal"])]
    for step, action in enumerate(actions, start=1):
        ended = False
        for name, world in worlds.items():
            seen, _, _, truncated, info = world.step(action)
            frames[name] = seen["image"]
            ended = ended or truncated
            if info["success"] and reached[name] == "no":
                reached[name] = f"step {step}"
        captions = [f"{name}, step {step}" for name in frames]
        pages.append(side_by_side([*frames.values(), goal], [*captions, "goal"]))
        if ended:
            break
    return pages, (seed, len(pages) - 1, reached["truth"], reached["dream"])


def _actions(
    policy: Behaviour, env: gym.Env[Any, Any], state: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Actions ``(T, A)`` of one episode, and the goal state they lead to, where they have one."""
    import numpy as np

    space: Any = env.action_space
    steps = env.spec.max_episode_steps if env.spec is not None else None
    shape = (steps or 20, *space.shape)
    generator = np.random.default_rng(seed)
    if policy == "zero":
        return np.zeros(shape), None
    if policy == "random":
        return generator.uniform(space.low, space.high, size=shape), None
    from rlvr_envs.simulators.pusht_batch import PushTBatch
    from training.experts import BatchExpert

    world = PushTBatch(1)
    world.set_states(state[None])
    expert = BatchExpert(world.states(), generator)
    taken = []
    for _ in range(int(np.prod(shape)) // 2):  # an expert acts every 0.1 s, two numbers each time
        taken.append(expert.act(world.states())[0])
        world.step(taken[-1][None])
    return np.reshape(taken, shape), world.states()[0]
