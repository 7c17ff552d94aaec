"""Tree search over texts: in a toy world of rooms, and in the true text games."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import pytest

import rlvr_envs  # noqa: F401  registers the ids
from planners.novelty import Novelty, TextReading, read_game_state
from planners.text_policy import TextPlanner
from planners.tree import TreeSearch
from planners.tree_config import TextPlan, TreeConfig
from rlvr_envs.simulators.text_game_world import TextGameWorld
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import start, step, valid_actions
from tests.toys import PointWorldModel
from worldmodels.api import History, Prediction
from worldmodels.language.game_state import GameState, parse_state

ORDERS = ("novelty", "score", "depth")
every_order = pytest.mark.parametrize("order", ORDERS)


# --- a toy: a token on a line of 0..9; "right", "left", "jump" (two right) and buttons that light and do nothing else


@dataclass(frozen=True)
class LineState:
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def fork(self, n: int) -> LineState:
        return LineState(tuple(text for text in self.texts for _ in range(n)))

    def select(self, rows: Sequence[int]) -> LineState:
        return LineState(tuple(self.texts[row] for row in rows))

    def append(self, other: LineState) -> LineState:
        return LineState(self.texts + other.texts)


class LinePredictions(list):
    def observations(self) -> list[str | None]:
        return [prediction.observation for prediction in self]

    def states(self) -> None:
        return None


class LineWorldModel:
    """A point at 3, two more at the end, 6, where the episode is won; 9 is a dead end with a point.

    Args:
        broken: (text, action) whose answers cannot be read.
        rewards: Whether it predicts any.
        strong: Its token goes two steps where the true one goes one.
    """

    history_length = 1
    action_shape = None

    def __init__(self, *, broken: Sequence[tuple[str, str]] = (), rewards: bool = True, strong: bool = False):
        self.broken, self.rewards, self.strong = broken, rewards, strong
        self.batch_sizes: list[int] = []
        self.asked: list[tuple[str, str]] = []

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> LineState:
        return LineState(tuple(history.observations[-1] for history in histories))

    def step(self, state: LineState, actions: Sequence[str], *, temperature: float = 1.0):
        assert len(state) == len(actions)
        self.batch_sizes.append(len(actions))
        self.asked += zip(state.texts, actions, strict=True)
        answers = [self._answer(*pair) for pair in zip(state.texts, actions, strict=True)]
        texts = tuple(a.observation or old for a, old in zip(answers, state.texts, strict=True))
        return LineState(texts), LinePredictions(answers)

    def _answer(self, text: str, action: str) -> Prediction:
        if (text, action) in self.broken:
            return Prediction(observation=None, error="no JSON")
        after, reward, over = truth(text, action, stride=2 if self.strong else 1)
        return Prediction(observation=after, reward=reward if self.rewards else None, terminated=over)


def line(place: int = 0, lights: str = "") -> str:
    return f"{place} {lights}"


def truth(text: str, action: str, *, stride: int = 1) -> tuple[str, float, bool]:
    place, lights = int(text.split(" ")[0]), text.split(" ")[1]
    old = place
    if action in ("left", "right", "jump"):
        place = max(0, min(9, place + {"left": -1, "right": stride, "jump": 4}[action]))
    elif action not in lights:
        lights = "".join(sorted(lights + action))
    reward = 0.0 if place == old else {3: 1.0, 6: 2.0, 9: 1.0}.get(place, 0.0)
    return line(place, lights), reward, place in (6, 9)


def read(text: str) -> TextReading:
    place, lights = str(text).split(" ")
    return TextReading(text=text, facts=[("at", place), *lights], won=place == "6")


def propose(text: str) -> list[str]:
    return ["a", "b", "c", "left", "right", "right"]


def search(**settings) -> TreeSearch:
    return TreeSearch(TreeConfig(**settings), read=read)


def plan(model=None, at: str | None = None, proposed=propose, avoid=(), refuted=None, **settings) -> TextPlan:
    history = History(observations=[line() if at is None else at])
    return search(**settings).plan(
        model or LineWorldModel(), history, proposed, avoid=avoid, refuted=refuted or {}
    )


@every_order
def test_the_shortest_way_is_found_where_everything_is_tried(order):
    found = plan(order=order)
    assert found.actions == ("right",) * 6
    assert found.observations == tuple(line(place) for place in range(1, 7))
    assert found.score == 3
    assert found.won
    assert found.terminated


def test_novelty_needs_the_fewest_predictions():
    steps = {order: plan(order=order, batch_rows=1).model_steps for order in ORDERS}
    assert steps["novelty"] < steps["score"] < steps["depth"]


@every_order
def test_a_search_is_deterministic(order):
    one, other = LineWorldModel(), LineWorldModel()
    assert plan(one, order=order, batch_rows=4) == plan(other, order=order, batch_rows=4)
    assert one.asked == other.asked


def test_no_state_and_action_is_asked_twice_and_batches_are_full():
    model = LineWorldModel()
    found = plan(model, order="depth", batch_rows=4)
    assert len(set(model.asked)) == len(model.asked) == found.model_steps == sum(model.batch_sizes)
    assert max(model.batch_sizes) == 4
    assert found.model_steps > 3 * len(model.batch_sizes)


@pytest.mark.parametrize("budget", [1, 7, 20])
def test_the_budget_is_kept(budget):
    model = LineWorldModel()
    found = plan(model, budget_steps=budget, batch_rows=8)
    assert found.model_steps == budget == sum(model.batch_sizes)
    assert not found.won


def test_without_a_victory_the_best_score_counts_and_the_shortest_way_to_it():
    found = plan(max_depth=4)
    assert found.actions == ("right",) * 3
    assert (found.score, found.won, found.terminated) == (1, False, False)


def test_an_open_episode_comes_before_one_that_is_lost():
    lost = plan(at=line(7), max_depth=2, proposed=lambda text: ["jump"])
    open_ = plan(at=line(5), max_depth=2, proposed=lambda text: ["jump", "left"])
    assert (lost.observations, lost.score, lost.terminated) == ((line(9),), 1, True)  # nothing else gains
    assert (open_.observations, open_.score, open_.terminated) == ((line(4), line(3)), 1, False)


def test_nothing_to_gain_is_an_empty_plan():
    found = plan(proposed=lambda text: ["a", "b"])
    assert found.actions == found.observations == ()
    assert found.states == 4  # no light, either, both
    assert found.expanded == 4
    assert plan(proposed=lambda text: []).model_steps == 0
    assert plan(at=line(6)).won  # nothing is left to do
    assert plan(at=line(6)).actions == ()


def test_errors_end_their_branch_only():
    model = LineWorldModel(broken=[(line(2), "right")])
    found = plan(model)
    assert found.errors == 1
    assert found.won
    assert found.actions != ("right",) * 6  # a light was needed to get past
    assert len(found.actions) == 7
    hopeless = LineWorldModel(broken=[(line(), action) for action in propose("")])
    assert plan(hopeless).errors == 5
    assert plan(hopeless).actions == ()


def test_a_state_that_cannot_be_read_is_an_error_too():
    class Mumbling(LineWorldModel):
        def _answer(self, text: str, action: str) -> Prediction:
            return Prediction(observation="what?" if action == "a" else line(1), reward=float("nan"))

    found = plan(Mumbling(), proposed=lambda text: ["a", "b"])
    assert found.errors == 2
    assert found.states == 1


def test_avoided_actions_are_not_tried_in_that_state():
    model = LineWorldModel()
    found = plan(model, avoid={(line(), "right")})
    assert (line(), "right") not in model.asked
    assert found.won
    assert len(found.actions) == 7


def test_nothing_is_tried_after_what_an_action_is_known_not_to_do():
    assert not plan(refuted={"right": {("at", "1")}}).actions
    assert plan(refuted={"right": {("at", "1")}}, at=line(2)).won  # from there it is not claimed
    assert plan(refuted={"right": {("at", "7")}}).won
    assert plan(refuted={"right": {"a"}}, at=line(0, "a")).won  # it was so before


class UnsureWorldModel(LineWorldModel):
    """Not sure of jumps."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def _answer(self, text: str, action: str) -> Prediction:
        return replace(
            super()._answer(text, action), probability=self.probability if action == "jump" else 1.0
        )


def moves(text: str) -> list[str]:
    return ["jump", "left", "right"]


@every_order
def test_a_sure_way_comes_before_a_short_one(order):
    found = plan(UnsureWorldModel(0.6), proposed=moves, order=order)
    assert found.actions == ("right",) * 6
    assert found.probability == 1


def test_a_search_ends_at_a_victory_that_is_sure_enough():
    long, short = (
        plan(UnsureWorldModel(0.9), proposed=moves, order="depth", batch_rows=1, sure=sure)
        for sure in (0.95, 0.85)
    )
    assert (long.actions, long.probability) == (("right",) * 6, 1)
    assert (short.actions, short.probability) == (("jump", "right", "right"), 0.9)
    assert short.model_steps < long.model_steps


def test_an_unlikely_gain_is_better_than_none():
    found = plan(UnsureWorldModel(0.1), at=line(5), proposed=lambda text: ["jump"], max_depth=1)
    assert (found.actions, found.score, found.probability) == (("jump",), 1, 0.1)


def test_what_is_doubted_is_not_followed():
    model = UnsureWorldModel(0.3)
    assert not plan(model, proposed=moves, doubt=0.5, budget_steps=6, batch_rows=1, order="depth").won
    assert ("4 ", "right") not in model.asked
    believed = UnsureWorldModel(0.6)
    plan(believed, proposed=moves, doubt=0.5, budget_steps=9, batch_rows=1, order="depth")
    assert ("4 ", "right") in believed.asked


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"doubt": 1.0}, "doubt must be in"),
        ({"sure": 1.5}, "sure in"),
        ({"order": "best"}, "order is 'best'"),
        ({"width": 3}, "width must be 1 or 2"),
        ({"budget_steps": 0}, "budget_steps must be at least 1"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        ({"postpone": -1}, "postpone must be at least 0"),
        ({"max_depth": 0}, "max_depth must be at least 1"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TreeConfig(**settings)


def test_what_cannot_be_planned_with_says_why():
    with pytest.raises(ValueError, match="predicts no rewards"):
        plan(LineWorldModel(rewards=False))
    with pytest.raises(ValueError, match="needs texts"):
        plan(PointWorldModel())
    with pytest.raises(ValueError, match="propose returned 'right'"):
        plan(proposed=lambda text: "right")
    with pytest.raises(ValueError, match="sequence of texts"):
        plan(proposed=lambda text: ["right", 1])
    with pytest.raises(ValueError, match="not JSON"):
        TreeSearch().plan(LineWorldModel(), History(observations=["here"]), propose)
    with pytest.raises(ValueError, match="replan_every must be at least 1"):
        TextPlanner(search(), LineWorldModel(), propose, replan_every=0)


# --- novelty


def test_novelty_is_the_size_of_the_smallest_new_set_of_facts():
    seen = Novelty(width=2)
    assert [seen.rank(facts) for facts in ([0, 1], [0, 2], [1, 2], [1, 2], [0, 1, 2])] == [1, 1, 2, 3, 3]
    narrow = Novelty(width=1)
    assert [narrow.rank(facts) for facts in ([0, 1], [0, 2], [1, 2])] == [1, 1, 2]


def test_facts_of_the_parent_change_no_rank():
    ways = [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3], [1, 3, 4]]
    plain, quick = Novelty(width=2), Novelty(width=2)
    assert [plain.rank(facts) for facts in ways] == [
        quick.rank(facts, ways[max(0, place - 1)] if place else ()) for place, facts in enumerate(ways)
    ]


def test_equal_game_states_are_read_alike():
    state = start(GAMES["boil-water"], 0)
    turned = json.dumps(
        {**json.loads(state.to_text()), "objects": json.loads(state.to_text())["objects"][::-1]}
    )
    one, other = read_game_state(state), read_game_state(turned)
    assert one.text == other.text == state.to_text()
    assert set(one.facts) == set(other.facts)
    assert not one.won
    assert read_game_state(replace(state, game_won=True)).won


# --- the policy


def act_out(policy: TextPlanner, *, steps: int = 12, at: str | None = None) -> list[str]:
    text, done = line() if at is None else at, []
    for _ in range(steps):
        action = policy.act(text)
        done.append(action)
        text, _, over = truth(text, action)
        if over:
            break
    return done


def test_a_plan_is_followed_while_the_truth_agrees():
    policy = TextPlanner(search(), LineWorldModel(), propose)
    assert act_out(policy) == ["right"] * 6
    assert len(policy.plans) == 1
    assert policy.model_steps == policy.plans[0].model_steps
    counted = TextPlanner(search(), LineWorldModel(), propose)
    assert counted.ahead == 0
    counted.act(line())
    assert counted.ahead == 5
    often = TextPlanner(search(), LineWorldModel(), propose, replan_every=2)
    assert act_out(often) == ["right"] * 6
    assert len(often.plans) == 3


def test_a_plan_is_dropped_when_something_else_happens_and_the_mistake_is_not_repeated():
    policy = TextPlanner(search(max_depth=3), LineWorldModel(strong=True), propose)
    done = act_out(policy, at=line(4))
    assert done == ["right", "right"]  # it thought one would do
    assert len(policy.plans) == 2
    wrong = TextPlanner(search(max_depth=2), LineWorldModel(strong=True), propose)
    assert wrong.act(line(4)) == "right"
    assert wrong.act(line(4)) != "right"  # nothing had moved: it is not tried again there


class PromisingWorldModel(LineWorldModel):
    """Says of two buttons that they win."""

    def _answer(self, text: str, action: str) -> Prediction:
        if action in ("a", "b"):
            return Prediction(observation=line(6), reward=2.0, terminated=True)
        return super()._answer(text, action)


def test_a_promise_that_was_broken_once_is_not_believed_in_other_states():
    policy = TextPlanner(search(), PromisingWorldModel(), propose)
    assert act_out(policy) == ["a", "b", *["right"] * 6]
    assert len(policy.plans) == 3


def test_where_nothing_else_is_left_a_broken_promise_is_believed_again():
    policy = TextPlanner(search(), PromisingWorldModel(), lambda text: ["a"])
    assert policy.act(line()) == "a"
    assert policy.act(line(0, "a")) == "a"
    assert [plan.won for plan in policy.plans] == [True, False, True]


def test_a_difference_that_breaks_no_promise_costs_no_second_search():
    class Modest(LineWorldModel):
        """Does not know that buttons light; promises a point for one."""

        def _answer(self, text: str, action: str) -> Prediction:
            return Prediction(observation=line(0, "z"), reward=1.0 * (action == "a"))

    policy = TextPlanner(search(), Modest(), lambda text: ["a"])
    assert policy.act(line()) == "a"
    policy.act(line(0, "az"))  # all that was promised, and more
    assert [len(plan.actions) for plan in policy.plans] == [1, 1]
    policy.act(line(0, "az"))
    assert [len(plan.actions) for plan in policy.plans] == [1, 1, 0]


def test_what_was_tried_least_is_tried_where_nothing_gains():
    policy = TextPlanner(search(), LineWorldModel(), lambda text: ["a", "b", "c"])
    assert [policy.act(line(0, lights)) for lights in ("", "a", "ab", "abc")] == ["a", "b", "c", "a"]
    model = LineWorldModel()
    policy = TextPlanner(search(), model, lambda text: ["a", "b"])
    assert [policy.act(line()) for _ in range(3)] == ["a", "b", "a"]
    assert len(policy.plans) == 1  # no search where one found nothing
    policy.reset(seed=1)
    assert policy.act(line()) == "a"
    with pytest.raises(ValueError, match="no action is proposed"):
        TextPlanner(search(), model, lambda text: []).act(line())


# --- the true games

BUDGET = 4_000
VARIATION = 5  # 10 of 11 games; over many variations about 8 of 11 at this size


def candidates(text: str) -> list[str]:
    state = parse_state(text)
    [task] = [item for item in state.objects.values() if item["type"] == "Task"]
    return valid_actions(GAMES[task["properties"]["game"]], state)


@pytest.fixture(scope="module")
def oracle_plans() -> dict[str, TextPlan]:
    config = TreeConfig(budget_steps=BUDGET)
    return {
        name: TreeSearch(config).plan(
            TextGameWorld(), History(observations=[start(game, VARIATION).to_text()]), candidates
        )
        for name, game in GAMES.items()
    }


def test_the_oracle_wins_at_least_nine_games(oracle_plans):
    assert sum(found.won for found in oracle_plans.values()) >= 9
    assert all(found.model_steps <= BUDGET for found in oracle_plans.values())
    assert all(found.errors == 0 for found in oracle_plans.values())


def test_what_the_oracle_plans_happens(oracle_plans):
    for name, found in oracle_plans.items():
        state: GameState = start(GAMES[name], VARIATION)
        for action, expected in zip(found.actions, found.observations, strict=True):
            state = step(GAMES[name], state, action).state
            assert state.to_text() == expected
        assert state.score == found.score
        assert (state.game_won, state.game_over) == (found.won, found.terminated)


def test_a_policy_wins_in_the_environment_whatever_the_batch():
    env = gym.make("RLVRWorld/TextGame-Sim-v0", game="open-vault")
    for rows in (1, 64):
        policy = TextPlanner(TreeSearch(TreeConfig(batch_rows=rows)), TextGameWorld(), candidates)
        observation, info = env.reset(options={"variation": VARIATION})
        policy.reset(seed=0)
        over = False
        while not over:
            observation, _, terminated, truncated, info = env.step(policy.act(observation))
            over = terminated or truncated
        assert info["won"]
        assert len(policy.plans) == 1
    env.close()
