"""The text games as a Gymnasium environment: the truth beside which language world models are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import gymnasium as gym

from rlvr_envs.simulators.text_games.catalogue import game_named
from rlvr_envs.simulators.text_games.engine import checked_start, start, step, valid_actions
from rlvr_envs.spaces import Document, checked_action, checked_options
from rlvr_envs.text_states import MAX_ACTION_CHARACTERS, MAX_STATE_CHARACTERS, state_lines
from worldmodels.language.game_state import GameObject, GameState, parse_state

RESET_OPTIONS = ("game", "variation", "state", "snapshot")
NUM_VARIATIONS = 1_000_000  # that reset draws from
_BEFORE, _AFTER = GameState(objects={}).to_text().split("[]", 1)  # what is around a state's objects
_Written: TypeAlias = dict[int, tuple[GameObject, str]]  # objects and their texts, by uuid


@dataclass(frozen=True, kw_only=True)
class TextGameSnapshot:
    """A moment of an episode; the generator of random variations is not part of it."""

    game: str
    variation: int | None
    state: GameState
    message: str


class TextGameSimEnv(gym.Env[str, str]):
    """Small text games whose state is a record of objects.

    ## Description
    Eleven games of one room each: boil water, bake bread, light a lamp and so on, each with its own mechanics,
    see ``rlvr_envs.simulators.text_games``. A turn is the action, then one tick of time, then the score. The
    record is everything: the same record and action always give the same next record.

    ## Action Space
    ``Document`` of at most 1,000 characters, for example ``"put kettle (ID: 4) in sink (ID: 7)"``; the number may
    be left out where one thing in reach has that name. ``info["valid_actions"]`` lists what is worth trying. A
    text that is no action changes nothing, takes no time, and is answered in ``info["message"]``.

    ## Observation Space
    ``Document``: the state as canonical JSON, ``{"objects": [...], "score": 0, "gameOver": false, "gameWon":
    false}``; an object has ``name``, ``uuid``, ``type``, ``properties`` and ``contains``, the names of what is in
    it. The object of type ``Task`` says what game it is and what is to be done.

    ## Starting State
    A variation, drawn from the seed: names, numbers, places and uuids. Options of ``reset``:

    - ``game``: for this episode, instead of the environment's own.
    - ``variation``: a whole number of at least 0.
    - ``state``: a state of the game, as JSON text, parsed, or a ``GameState``; excludes ``variation``.
    - ``snapshot``: what :meth:`snapshot` gave; continues from there exactly. It excludes the others.

    ## Rewards
    The change of the score: one point for each milestone, once. Points are never taken away.

    ## Episode End
    Terminated when the game says ``gameOver``: won at the last milestone, or no longer winnable (something
    burnt, cracked, dead, spilt). Truncated after 50 steps; the solver needs at most 25.

    ## Information
    ``state``: the parsed :class:`worldmodels.language.game_state.GameState`; ``message``: what the game says;
    ``valid_actions``; ``game``; ``variation`` (None for a given state); ``task``: what is to be done; ``score``;
    ``won``.

    ## Arguments
    - ``game``: a name of ``rlvr_envs.simulators.text_games.catalogue.GAMES``.
    - ``render_mode``: ``"ansi"`` or None.

    ## References
    Wang et al. 2023, ByteSized32; Wang et al. 2024, ByteSized32-State-Prediction (the record's format). The
    games and their rules are this project's own.

    ## Version History
    - v0: first release.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (Gymnasium's own interface)

    def __init__(self, *, game: str = "boil-water", render_mode: str | None = None) -> None:
        self.observation_space: gym.Space[str] = Document(max_characters=MAX_STATE_CHARACTERS)
        self.action_space: gym.Space[str] = Document(max_characters=MAX_ACTION_CHARACTERS)
        self.game = game_named(game).name
        self.render_mode = render_mode
        self._moment: TextGameSnapshot | None = None
        self._written: _Written = {}

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see the class for the options.

        Raises:
            ValueError: Unknown options, or a game, variation or state that is none; says what is expected.
        """
        super().reset(seed=seed)
        options = checked_options(options, RESET_OPTIONS)
        if "snapshot" in options:
            if len(options) > 1:
                raise ValueError(f"options has {sorted(options)}; a snapshot holds everything, give it alone")
            return self.restore(options["snapshot"])
        if "state" in options and "variation" in options:
            raise ValueError("options has both 'state' and 'variation'; give one of them")
        variation = options.get("variation", int(self.np_random.integers(NUM_VARIATIONS)))
        game = game_named(options.get("game", self.game))
        if "state" in options:
            given = options["state"]
            state = checked_start(game, given if isinstance(given, GameState) else parse_state(given))
            variation = None
        else:
            state = start(game, variation)
        self._moment = TextGameSnapshot(game=game.name, variation=variation, state=state, message="")
        return self._observed()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out an action and let one tick of time pass.

        Raises:
            ValueError: The action is not a text, longer than 1,000 characters, or not valid unicode.
        """
        text, _ = checked_action(self.action_space, action)
        moment = self.snapshot()
        turn = step(game_named(moment.game), moment.state, text)
        self._moment = TextGameSnapshot(
            game=moment.game, variation=moment.variation, state=turn.state, message=turn.message
        )
        observation, info = self._observed()
        return observation, float(turn.state.score - moment.state.score), turn.state.game_over, False, info

    def render(self) -> str | None:
        """The message and what there is, as indented text."""
        if self.render_mode != "ansi":
            return None
        moment = self.snapshot()
        return "\n".join([moment.message, *state_lines(moment.state)]).lstrip("\n")

    def snapshot(self) -> TextGameSnapshot:
        """This moment; ``restore`` and ``reset(options={"snapshot": ...})`` continue from it exactly."""
        if self._moment is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self._moment

    def restore(self, snapshot: TextGameSnapshot) -> tuple[str, dict[str, Any]]:
        """Go back to a snapshot, of this or of another environment; wrappers (the time limit) do not notice.

        Raises:
            ValueError: Not a snapshot of this class.
        """
        if not isinstance(snapshot, TextGameSnapshot):
            raise ValueError(
                f"snapshot is {type(snapshot).__name__}; give what snapshot() of a TextGameSimEnv returned"
            )
        self._moment = snapshot
        return self._observed()

    def _observed(self) -> tuple[str, dict[str, Any]]:
        moment = self.snapshot()
        state = moment.state
        task = next(item for item in state.objects.values() if item["type"] == "Task")
        self._written = {
            uuid: self._written[uuid]
            if uuid in self._written and self._written[uuid][0] is item
            else (item, _object_text(item))
            for uuid, item in state.objects.items()
        }
        return _state_text(state, [self._written[uuid][1] for uuid in sorted(state.objects)]), {
            "state": state,
            "message": moment.message,
            "valid_actions": valid_actions(game_named(moment.game), state),
            "game": moment.game,
            "variation": moment.variation,
            "task": dict(task["properties"]),
            "score": state.score,
            "won": state.game_won,
        }


def _object_text(item: GameObject) -> str:
    """One object's part of the canonical text of a state."""
    return GameState(objects={item["uuid"]: item}).to_text()[len(_BEFORE) + 1 : -len(_AFTER) - 1]


def _state_text(state: GameState, object_texts: Sequence[str]) -> str:
    """``state.to_text()`` from the texts of its objects: most of them stay the same from turn to turn."""
    before, after = replace(state, objects={}).to_text().split("[]", 1)
    return f"{before}[{', '.join(object_texts)}]{after}"
