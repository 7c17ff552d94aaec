"""Dreams over a toy world model: reproducible, forkable, batched, and never raising on bad predictions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlvr_envs.dreams import PushTTask, pusht, pusht_vector
from rlvr_envs.learned import LearnedEnv, LearnedVectorEnv
from rlvr_envs.simulators.pusht_env import PushTSimEnv
from rlvr_envs.tasks import GOAL_POSE, PushTRules
from tests.toys import EscapeTask, PointWorldModel
from worldmodels.api import History, Prediction, WorldModel

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (30, 10)).astype(np.float32)


def dream(**kwargs: Any) -> LearnedEnv:
    return pusht(world_model=PointWorldModel(), **kwargs)


def walk(env: gym.Env, actions: np.ndarray) -> list[np.ndarray]:
    return [env.step(action)[0]["proprio"] for action in actions]


def test_the_toy_is_a_world_model() -> None:
    assert isinstance(PointWorldModel(), WorldModel)


def test_a_seed_decides_everything() -> None:
    env, other = dream(), dream()
    env.reset(seed=3)
    other.reset(seed=3)
    np.testing.assert_array_equal(walk(env, ACTIONS[:5]), walk(other, ACTIONS[:5]))
    env.reset()
    other.reset()
    np.testing.assert_array_equal(walk(env, ACTIONS[:5]), walk(other, ACTIONS[:5]))
    first = env.reset(seed=3)[0]
    second = other.reset(seed=4, options={"observation": first})[0]
    np.testing.assert_array_equal(first["proprio"], second["proprio"])
    assert not np.array_equal(walk(env, ACTIONS[:2]), walk(other, ACTIONS[:2]))


def test_temperature_zero_has_no_noise() -> None:
    env, other = dream(temperature=0.0), dream(temperature=0.0)
    first, _ = env.reset(seed=0)
    other.reset(seed=1, options={"observation": first})
    np.testing.assert_array_equal(walk(env, ACTIONS[:3]), walk(other, ACTIONS[:3]))
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="temperature"):
            dream(temperature=wrong)


def test_starts_are_real_frames_with_a_goal() -> None:
    env = dream()
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        np.testing.assert_array_equal(observation["proprio"], info["state"][[0, 1, 5, 6]].astype(np.float32))
        assert not np.array_equal(info["goal_state"], info["state"])
    _, info = dream(success="coverage").reset(seed=0)
    np.testing.assert_array_equal(info["goal_state"][2:5], GOAL_POSE)


def test_a_dream_starts_where_the_simulator_is() -> None:
    sim, env = PushTSimEnv(), dream()
    observation, truth = sim.reset(seed=0)
    goal = {"state": truth["goal_state"], "image": truth["goal"]}
    again, info = env.reset(options={"observation": observation, "goal": goal})
    np.testing.assert_array_equal(again["image"], observation["image"])
    np.testing.assert_array_equal(info["goal"], truth["goal"])
    assert np.isnan(info["state"][2:5]).all()  # nobody said where the block is
    np.testing.assert_array_equal(info["state"][:2], observation["proprio"][:2].astype(np.float64))
    _, info = env.reset(options={"observation": observation, "state": truth["state"], "goal": goal})
    np.testing.assert_array_equal(info["state"], truth["state"])
    assert info["coverage"] == truth["coverage"]


def test_histories_of_several_frames() -> None:
    sim, env = PushTSimEnv(), dream()
    observations = [sim.reset(seed=0)[0]] + [sim.step(action)[0] for action in ACTIONS[:2]]
    history = History(observations=observations, actions=tuple(ACTIONS[:2]))
    observation, _ = env.reset(seed=0, options={"history": history})
    np.testing.assert_array_equal(observation["image"], observations[-1]["image"])
    with pytest.raises(ValueError, match="3 observations and 1 actions"):
        env.reset(options={"history": History(observations=observations, actions=ACTIONS[:1])})
    with pytest.raises(ValueError, match="give one of them"):
        env.reset(options={"history": history, "observation": observation})
    with pytest.raises(ValueError, match="History"):
        env.reset(options={"history": observations})


def test_what_only_the_simulator_can_draw_is_refused() -> None:
    env = dream()
    with pytest.raises(ValueError, match=r"only the simulator can draw it.*observation"):
        env.reset(options={"state": np.zeros(7)})
    with pytest.raises(ValueError, match=r"no image.*goal_state"):
        env.reset(options={"goal": np.zeros(7)})
    small = {"image": np.zeros((32, 32, 3), np.uint8), "proprio": np.zeros(4, np.float32)}
    with pytest.raises(ValueError, match=r"uint8 \(32, 32, 3\)"):
        env.reset(options={"observation": small})
    lost = {"image": np.zeros((64, 64, 3), np.uint8), "proprio": np.full(4, np.nan, np.float32)}
    with pytest.raises(ValueError, match="not finite"):
        env.reset(options={"observation": lost})
    with pytest.raises(ValueError, match="image"):
        env.reset(options={"goal": {"state": np.zeros(7), "image": small["image"]}})


def test_snapshots_and_forks_reproduce() -> None:
    env = dream()
    env.reset(seed=0)
    walk(env, ACTIONS[:3])
    snapshot = env.snapshot()
    expected = walk(env, ACTIONS[3:8])
    observation, info = env.restore(snapshot)
    np.testing.assert_array_equal(observation["proprio"][:2], info["state"][:2].astype(np.float32))
    np.testing.assert_array_equal(walk(env, ACTIONS[3:8]), expected)
    env.reset(options={"snapshot": snapshot})
    np.testing.assert_array_equal(walk(env, ACTIONS[3:8]), expected)
    # The world model's own fork of that moment: the first copy goes on as the environment, the second does not.
    rollout, copies = snapshot.rollout.fork(2), []
    for action in ACTIONS[3:8]:
        rollout, predictions = env.world_model.step(rollout, np.stack([action] * 2))
        copies.append([predictions[row].observation["proprio"] for row in range(2)])
    np.testing.assert_array_equal([first for first, _ in copies], expected)
    assert not np.array_equal([second for _, second in copies], expected)


BAD = {
    "undecodable": Prediction(observation=None, error="token 7 is not an image token"),
    "empty": Prediction(observation=None),
    "misshapen": Prediction(
        observation={"image": np.zeros((2, 2, 3), np.uint8), "proprio": np.zeros(4, np.float32)}
    ),
    "not a number": Prediction(
        observation={"image": np.zeros((64, 64, 3), np.uint8), "proprio": np.full(4, np.nan, np.float32)}
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_predictions_keep_the_last_observation(kind: str) -> None:
    env = pusht(world_model=PointWorldModel(wrong={2: BAD[kind]}), reward="dense")
    env.reset(seed=0)
    good, good_reward, _, _, good_info = env.step(ACTIONS[0])
    assert good_info["prediction_error"] == ""
    kept, reward, terminated, truncated, info = env.step(ACTIONS[1])
    np.testing.assert_array_equal(kept["image"], good["image"])
    np.testing.assert_array_equal(kept["proprio"], good["proprio"])
    np.testing.assert_array_equal(info["state"], good_info["state"])
    assert (reward, terminated, truncated) == (good_reward, False, False)
    assert info["prediction_error"]
    if kind == "undecodable":
        assert info["prediction_error"] == "token 7 is not an image token"
    after, _, _, _, info = env.step(ACTIONS[2])
    assert info["prediction_error"] == ""
    assert not np.array_equal(after["proprio"], good["proprio"])


def test_a_bad_first_prediction_keeps_the_start() -> None:
    env = pusht(world_model=PointWorldModel(wrong={1: BAD["undecodable"]}))
    first, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.step(ACTIONS[0])[0]["image"], first["image"])


def test_models_that_read_no_state_earn_the_least() -> None:
    env = pusht(world_model=PointWorldModel(reads_states=False), reward="dense")
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(ACTIONS[0])
    assert (reward, terminated) == (-1.0, False)
    assert np.isnan(info["state"][2:5]).all()
    np.testing.assert_array_equal(info["state"][:2].astype(np.float32), observation["proprio"][:2])


def test_readings_of_five_numbers_take_the_predicted_velocity() -> None:
    task = PushTTask(frame_skip=5, rules=PushTRules())
    observation, _ = dream().reset(seed=0)
    observation["proprio"][:] = (1, 2, 30, 40)
    goal = task.start(np.random.default_rng(0), {}).goal
    prediction = Prediction(observation=observation)
    outcome = task.judge(goal, prediction, np.array([1, 2, 3, 4, 5], dtype=np.float32), None)
    np.testing.assert_array_equal(outcome.info["state"], [1, 2, 3, 4, 5, 30, 40])
    with pytest.raises(ValueError, match=r"\(3,\).*7 numbers, or 5"):
        task.judge(goal, prediction, np.zeros(3), None)


def test_a_predicted_end_ends_the_episode_but_is_not_repeated() -> None:
    observation, _ = dream().reset(seed=0)
    end = Prediction(observation=observation, terminated=True)
    env = pusht(world_model=PointWorldModel(wrong={1: end, 2: BAD["undecodable"]}))
    env.reset(seed=0)
    assert env.step(ACTIONS[0])[2] is True
    assert env.step(ACTIONS[1])[2] is False


def test_lists_are_not_arrays() -> None:
    listed = {"image": np.zeros((64, 64, 3), np.uint8), "proprio": [0.0, 0.0, 0.0, 0.0]}
    with pytest.raises(ValueError, match=r"proprio.*\[0.0, 0.0, 0.0, 0.0\]"):
        dream().reset(options={"observation": listed})


def test_success_is_read_by_the_model() -> None:
    env = dream(temperature=0.0)
    first, _ = env.reset(seed=0)
    _, _, _, _, info = env.step(np.zeros(10))
    goal = {"state": info["state"], "image": first["image"]}
    env.reset(options={"observation": first, "goal": goal})
    _, reward, terminated, _, info = env.step(np.zeros(10))
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_rendering_repeats_pixels() -> None:
    env = dream(render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (224, 224, 3)
    np.testing.assert_array_equal(frame[::7, ::7], observation["image"][::2, ::2])
    assert dream().render() is None
    envs = pusht_vector(world_model=PointWorldModel(), num_envs=2, render_mode="rgb_array")
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.render()[0], frame)


def test_models_of_another_frame_skip_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4,\).*\(10,\).*frame_skip"):
        pusht(world_model=PointWorldModel(frame_skip=2))
    assert pusht(world_model=PointWorldModel(frame_skip=2), frame_skip=2).action_space.shape == (4,)


def vector(num_envs: int, **kwargs: Any) -> LearnedVectorEnv:
    task = PushTTask(frame_skip=5, rules=PushTRules())
    return LearnedVectorEnv(PointWorldModel(), task, num_envs=num_envs, **kwargs)


def test_rows_that_end_at_different_times_are_single_environments() -> None:
    envs = LearnedVectorEnv(PointWorldModel(), EscapeTask(), num_envs=5, max_episode_steps=6)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    singles = [
        gym.wrappers.TimeLimit(LearnedEnv(PointWorldModel(), EscapeTask()), max_episode_steps=6)
        for _ in range(5)
    ]
    observations, infos = envs.reset(seed=11)
    for row, single in enumerate(singles):
        observation, info = single.reset(seed=11 + row)
        np.testing.assert_array_equal(observations["proprio"][row], observation["proprio"])
        assert infos["distance"][row] == info["distance"]
    actions = np.random.default_rng(1).uniform(-1, 1, (40, 5, 10)).astype(np.float32)
    ended = np.zeros(5, bool)
    mixed = 0
    for step in range(40):
        mixed += 0 < ended.sum() < 5
        observations, rewards, terminated, truncated, infos = envs.step(actions[step])
        for row, single in enumerate(singles):
            if ended[row]:
                observation, info = single.reset()
                reward, end, cut = 0.0, False, False
            else:
                observation, reward, end, cut, info = single.step(actions[step, row])
            assert (rewards[row], terminated[row], truncated[row]) == (reward, end, cut)
            np.testing.assert_array_equal(observations["image"][row], observation["image"])
            np.testing.assert_array_equal(observations["proprio"][row], observation["proprio"])
            assert infos["distance"][row] == info["distance"]
        ended = terminated | truncated
    assert mixed > 5  # some rows restarted while others went on


def test_one_world_model_step_for_all_rows() -> None:
    envs = vector(4, max_episode_steps=2)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.zeros((4, 10), np.float32))
    assert envs.world_model.batch_sizes == [4, 4]  # the third step restarts all rows


def test_ignored_actions_may_be_anything() -> None:
    envs = vector(2, max_episode_steps=1)
    envs.reset(seed=0)
    envs.step(np.zeros((2, 10)))
    _, rewards, terminated, truncated, _ = envs.step(np.full((2, 10), np.nan))
    assert not rewards.any()
    assert not terminated.any()
    assert not truncated.any()
    with pytest.raises(ValueError, match="not finite"):
        envs.step(np.full((2, 10), np.nan))


def test_vector_resets() -> None:
    envs = vector(3)
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(np.zeros((3, 10)))
    first, _ = envs.reset(seed=5)
    listed, _ = envs.reset(seed=[5, 6, 7])
    np.testing.assert_array_equal(first["image"], listed["image"])
    fresh, _ = envs.reset()
    assert not np.array_equal(first["proprio"], fresh["proprio"])
    with pytest.raises(ValueError, match="2 seeds for 3"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="2 actions for 3"):
        envs.step(np.zeros((2, 10)))
    with pytest.raises(ValueError, match="shape"):
        envs.step(np.zeros((3, 9)))
    with pytest.raises(ValueError, match="'sate'"):
        envs.reset(options={"sate": 1})
    with pytest.raises(ValueError, match="num_envs is 0"):
        vector(0)


def test_bad_rows_do_not_touch_the_others() -> None:
    model = PointWorldModel(wrong={2: BAD["undecodable"]}, wrong_rows=(1,))
    envs = pusht_vector(world_model=model, num_envs=2, max_episode_steps=5)
    envs.reset(seed=0)
    good = envs.step(np.stack([ACTIONS[0], ACTIONS[1]]))[0]
    kept, _, _, _, infos = envs.step(np.stack([ACTIONS[0], ACTIONS[1]]))
    np.testing.assert_array_equal(kept["image"][1], good["image"][1])
    assert not np.array_equal(kept["proprio"][0], good["proprio"][0])
    assert infos["prediction_error"].tolist() == ["", "token 7 is not an image token"]


def test_ppo_trains_in_a_dream() -> None:
    ppo = pytest.importorskip("stable_baselines3", reason="needs the extra sb3").PPO
    env = gym.make("rlvr_envs:RLVRWorld/PushT-v0", reward="dense")  # the bundled world model
    model = ppo("MultiInputPolicy", env, n_steps=32, batch_size=16, n_epochs=1, seed=0, device="cpu")
    before = model.policy.action_net.weight.detach().clone()
    model.learn(32)
    assert model.num_timesteps == 32
    assert not np.array_equal(before.numpy(), model.policy.action_net.weight.detach().numpy())


def test_an_action_may_end_an_episode_whatever_the_world_answers() -> None:
    env = LearnedEnv(PointWorldModel(), EscapeTask(), temperature=0.0)
    env.reset(seed=0)
    moment = env.snapshot()
    still, last = np.zeros(10, np.float32), np.ones(10, np.float32)
    assert not env.step(still)[2]
    env.restore(moment)
    assert env.step(last)[2]
    both = LearnedVectorEnv(PointWorldModel(), EscapeTask(), num_envs=2, temperature=0.0)
    both.reset(seed=0)
    _, _, terminated, _, _ = both.step(np.stack([still, last]))
    assert terminated.tolist() == [False, True]
    _, _, terminated, _, infos = both.step(np.stack([still, last]))  # the second row begins anew
    assert terminated.tolist() == [False, False]
    assert infos["clipped_actions"].tolist() == [0, 0]
