"""``rlvr-world play``: act in an environment and film it, the dream beside the truth where there is one.

Special: dream and truth get the same first observation, the same goal and the same actions, so that the film
shows where the world model goes wrong. Actions never depend on what is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    tokenizer: str | None = None,
    threads: int = 1,
) -> None:
    """Act in an environment and write a film of it; text games give a transcript instead.

    Args:
        env_id: For example RLVRWorld/PushT-v0; see 'rlvr-world list'.
        policy: random (drawers: slow random motion that never ends the episode); zero, which stays; or expert-replay:
            what an expert does in the simulator (PushT: the state it reached is the goal; drawers: it fulfils the
            episode's task and stays).
        gif: The film.
        episodes: How many, one after the other in the same film.
        seed: Of the first episode; the next has the next.
        model: World model of a dream instead of its default: bundled name, folder or hub id.
        tokenizer: Likewise, the tokenizer of a released drawer model.
        threads: Threads to compute with.
    """
    use_threads(threads)
    if episodes < 1:
        raise ValueError(f"--episodes is {episodes}; it must be at least 1")
    import gymnasium
    from tqdm import tqdm

    import rlvr_envs
    from rlvr_envs.spaces import Document
    from training.commands.play_text import play_text
    from training.pictures import write_gif

    entry = choose("environment", env_id, rlvr_envs.ENVS)
    if model is not None and entry.twin is None:
        raise ValueError(f"--model is {model!r}, but {env_id} is a simulator and has no world model")
    if tokenizer is not None and (model is None or "Drawer" not in env_id):
        raise ValueError(f"--tokenizer is {tokenizer!r}; it goes with --model and a drawer environment only")
    truth = gymnasium.make(entry.twin or env_id, disable_env_checker=True)
    dream = None
    if entry.twin:
        named = {"world_model": model, "tokenizer": tokenizer}
        settings: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        dream = gymnasium.make(env_id, disable_env_checker=True, **settings)
    if isinstance(truth.observation_space, Document):
        play_text(env_id, truth, dream, policy, episodes=episodes, seed=seed)
        return
    writable(gif)
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
    actions, goal_state = _actions(policy, truth, info, seed)
    if goal_state is not None:
        observation, info = truth.reset(seed=seed, options={"goal": goal_state})
    aim = {} if "goal" not in info else {"goal": info["goal"]}
    reached: dict[str, str] = {"truth": "no", "dream": "no" if dream else "-"}
    worlds: dict[str, gym.Env[Any, Any]] = {"truth": truth}
    frames = {"truth": _frame(observation)}
    if dream is not None:
        worlds["dream"] = dream
        start = {"observation": observation, "state": info["state"]}
        if "goal" in info:
            start["goal"] = {"state": info["goal_state"], "image": info["goal"]}
        else:
            start["task"] = info["task"]
        frames["dream"] = _frame(dream.reset(seed=seed, options=start)[0])
    name_of_task = info.get("instruction", "")
    pages = [side_by_side([*frames.values(), *aim.values()], _captions(frames, name_of_task, aim))]
    for step, action in enumerate(actions, start=1):
        ended = False
        for name, world in worlds.items():
            seen, _, _, truncated, info = world.step(action)
            frames[name] = _frame(seen)
            ended = ended or truncated
            if info["success"] and reached[name] == "no":
                reached[name] = f"step {step}"
        pages.append(side_by_side([*frames.values(), *aim.values()], _captions(frames, f"step {step}", aim)))
        if ended:
            break
    return pages, (seed, len(pages) - 1, reached["truth"], reached["dream"])


def _frame(observation: Any) -> NDArray[np.uint8]:
    """The picture in an observation, which may be nothing else."""
    frame: NDArray[np.uint8] = observation["image"] if isinstance(observation, dict) else observation
    return frame


def _captions(names: Iterable[str], text: str, aim: Iterable[str]) -> list[str]:
    return [*(f"{name}, {text}" if text else name for name in names), *aim]


def _actions(
    policy: Behaviour, env: gym.Env[Any, Any], info: Mapping[str, Any], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Actions ``(T, A)`` of one episode, and the goal state they lead to, where they have one."""
    import numpy as np

    space: Any = env.action_space
    steps = env.spec.max_episode_steps if env.spec is not None else None
    shape = (steps or 20, *space.shape)
    generator = np.random.default_rng(seed)
    if policy == "zero":
        return np.zeros(shape), None
    if "task" in info:
        return _drawer_actions(policy, info, shape[0], generator), None
    if policy == "random":
        return generator.uniform(space.low, space.high, size=shape), None
    from rlvr_envs.simulators.pusht_batch import PushTBatch
    from training.experts import BatchExpert

    world = PushTBatch(1)
    world.set_states(info["state"][None])
    expert = BatchExpert(world.states(), generator)
    taken = []
    for _ in range(int(np.prod(shape)) // 2):  # an expert acts every 0.1 s, two numbers each time
        taken.append(expert.act(world.states())[0])
        world.step(taken[-1][None])
    return np.reshape(taken, shape), world.states()[0]


def _drawer_actions(
    policy: Behaviour, info: Mapping[str, Any], steps: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Actions ``(steps, 13)`` of a behaviour of the training data, without the flag that ends an episode."""
    import numpy as np

    from rlvr_envs.drawer_rules import drawer_task
    from rlvr_envs.simulators.drawer import DrawerWorld
    from rlvr_envs.simulators.drawer_env import act_in
    from rlvr_envs.simulators.drawer_policies import make_policy
    from worldmodels.video.rt1_actions import RT1_PARTS

    behaviour = make_policy(
        "expert" if policy == "expert-replay" else "smooth", drawer_task(info["task"]), generator
    )
    world = DrawerWorld()
    world.reset(info["state"])
    taken = []
    for _ in range(steps):
        action = behaviour.act(world.state()).astype(np.float64)
        action[RT1_PARTS["terminate_episode"]] = (0, 1, 0)
        taken.append(action)
        act_in(world, action)
    return np.stack(taken)
