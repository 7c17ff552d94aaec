"""Random game states for property tests, and a small transition in the published record format."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from worldmodels.language.game_state import GameState

NAMES = st.sampled_from(["pot (ID: 1)", "water", "Truehart's vase", "élan", "a b"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 0.5, -2.5])
    | st.text("ab'\"{é", max_size=4)
)
VALUES = (
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from("xyz"), SCALARS, max_size=2)
)


def game_objects(uuid: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "name": NAMES,
            "uuid": st.just(uuid),
            "type": st.sampled_from(["Pot", "World"]),
            "properties": st.dictionaries(
                st.sampled_from(["isOn", "temperature", "contains", "score"]), VALUES, max_size=3
            ),
            "contains": st.lists(NAMES, max_size=3),
        }
    )


@st.composite
def states(draw: st.DrawFn, min_objects: int = 0) -> GameState:
    uuids = draw(st.lists(st.integers(0, 5), unique=True, min_size=min_objects, max_size=4))
    return GameState(
        objects={uuid: draw(game_objects(uuid)) for uuid in uuids},
        score=draw(st.sampled_from([0, 1, 2.5])),
        game_over=draw(st.booleans()),
        game_won=draw(st.booleans()),
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[GameState, GameState]:
    """Two states that mostly share their objects, as consecutive ones do."""
    before, other = draw(states(min_objects=1)), draw(states())
    kept = {uuid: item for uuid, item in before.objects.items() if draw(st.booleans())}
    objects = draw(st.sampled_from([dict(before.objects), {**kept, **other.objects}, dict(other.objects)]))
    scored = draw(st.sampled_from([before, other]))
    after = GameState(
        objects=objects, score=scored.score, game_over=scored.game_over, game_won=scored.game_won
    )
    return before, after


def pot(*, temperature: float = 20, is_on: bool = False, contains: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "name": "pot (ID: 1)",
        "uuid": 1,
        "type": "Pot",
        "properties": {"temperature": temperature, "isOn": is_on},
        "contains": list(contains),
    }


def water(**changes: Any) -> dict[str, Any]:
    return {"name": "water (ID: 2)", "uuid": 2, "type": "Water", "properties": {}, "contains": [], **changes}


def state(*objects: dict[str, Any], score: float = 0, over: bool = False, won: bool = False) -> GameState:
    return GameState(
        objects={item["uuid"]: item for item in objects}, score=score, game_over=over, game_won=won
    )


def record(
    before: GameState, after: GameState, *, game: str = "kettle", action: str = "wait"
) -> dict[str, Any]:
    def texts(one: GameState) -> dict[str, Any]:
        return {
            "taskDesc": "Boil it.",
            "lastAction": action,
            "max_UUID": 3,
            "objects": [*one.objects.values()],
        }

    return {
        "game": game,
        "state_id": 7,
        "current_state": texts(before),
        "action_state": texts(before),
        "tick_state": texts(after),
        "current_score_state": before.scores(),
        "next_score_state": after.scores(),
    }
