"""The learned text games: the next state is what a language model says it is.

Special: a dream knows no rules. Score and end are those of the predicted state, an answer that cannot be read keeps
the last state and says why, and valid actions are known only where the user gives a function that names them.

Absent on purpose: simulators, which this module must not see, and any particular game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlvr_envs.contexts import TEXT_STARTS
from rlvr_envs.learned import LearnedEnv, LearnedVectorEnv
from rlvr_envs.moments import Outcome, Start
from rlvr_envs.spaces import Document, checked_observation
from rlvr_envs.text_states import MAX_ACTION_CHARACTERS, MAX_STATE_CHARACTERS, state_lines
from worldmodels.api import History, Observation, Prediction, WorldModel
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.json_lines import warn_left_out
from worldmodels.language.published_prompt import TEMPLATE, PublishedPrompt
from worldmodels.language.state_diff import StateDifference, difference
from worldmodels.language.transitions import read_transitions

HORIZON_STEPS = 50
MAX_RECORDED_STARTS = 2000  # states read from a folder of transitions

ValidActions = Callable[[GameState], Sequence[str]]
"""Names what is worth trying in a state."""


@dataclass(frozen=True, kw_only=True)
class FirstState:
    """Where an episode may begin."""

    game: str
    state: GameState


def text_game(
    *,
    world_model: WorldModel | str | Path,
    episodes: str | Path | None = None,
    game: str | None = None,
    valid_actions: ValidActions | None = None,
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> LearnedEnv:
    """Small text games, inside a language world model.

    ## Description
    A state is a record of objects, an action is a text, and the next state is what the world model predicts, action
    and passing time together. The truth for the bundled model is ``RLVRWorld/TextGame-Sim-v0``.

    ## Action Space
    ``Document`` of at most 1,000 characters.

    ## Observation Space
    ``Document``: the state as canonical JSON, as in the simulator.

    ## Starting State
    One of the bundled first states of our games, or the states of the recorded transitions in ``episodes``. Options
    of ``reset``:

    - ``game``: begin with this game.
    - ``observation``: a state as JSON text.
    - ``snapshot``: what :meth:`LearnedEnv.snapshot` gave; goes back to that moment. It excludes the others.

    ## Rewards
    The predicted change of the score; 0 where the answer could not be read.

    ## Episode End
    Terminated when the predicted state says ``gameOver``. Truncated after 50 steps.

    ## Information
    ``state``: the parsed :class:`worldmodels.language.game_state.GameState`; ``difference``: the predicted
    :class:`worldmodels.language.state_diff.StateDifference`, empty at the start; ``game``; ``score``; ``won``;
    ``valid_actions``, empty where nobody names them; ``prediction_error``: why the last state was kept, "" if it was
    not; ``clipped_actions``, always 0.

    ## Arguments
    - ``world_model``: a bundled name, a folder, a hub id (ours, or any causal language model in safetensors files),
      or any ``worldmodels.api.WorldModel`` of texts.
    - ``episodes``: a file or folder of recorded transitions, ours or ByteSized32-State-Prediction's. If the folder
      holds ``prompt.json`` beside the latter, a language model is asked by the published prompt, as the released ones
      were trained; otherwise by ``worldmodels.language.prompts.compact_prompt``, and a warning says so.
    - ``game``: begin with this game; None: with any.
    - ``valid_actions``: a function from a ``GameState`` to texts, for example the simulator's.
    - ``temperature``: of the model's draws; 0 takes the likeliest tokens.
    - ``render_mode``: ``"ansi"`` or None.

    ## References
    Wu et al. 2025, RLVR-World; Wang et al. 2024, ByteSized32-State-Prediction.

    ## Version History
    - v0: first release.
    """
    task = TextGameDreamTask(starts=_starts(episodes), game=game, valid_actions=valid_actions)
    return LearnedEnv(_asked(world_model, episodes), task, temperature=temperature, render_mode=render_mode)


def text_game_vector(
    *,
    world_model: WorldModel | str | Path,
    num_envs: int,
    max_episode_steps: int | None = HORIZON_STEPS,
    episodes: str | Path | None = None,
    game: str | None = None,
    valid_actions: ValidActions | None = None,
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> LearnedVectorEnv:
    """``num_envs`` text dreams stepped as one batch; for the rest see :func:`text_game`."""
    task = TextGameDreamTask(starts=_starts(episodes), game=game, valid_actions=valid_actions)
    return LearnedVectorEnv(
        _asked(world_model, episodes),
        task,
        num_envs=num_envs,
        max_episode_steps=max_episode_steps,
        temperature=temperature,
        render_mode=render_mode,
    )


def _asked(world_model: WorldModel | str | Path, episodes: str | Path | None) -> WorldModel:
    """The world model; one that was named and needs a prompt gets the published one where the episodes hold it."""
    if not isinstance(world_model, str | Path):
        return world_model
    from worldmodels import load  # imports torch, which an environment over another model may not need
    from worldmodels.language.causal_lm_world import CausalLMWorldModel

    model = load(world_model)
    if not isinstance(model, CausalLMWorldModel):
        return model
    if episodes is not None and (Path(episodes) / TEMPLATE).is_file():
        return model.asked_by(PublishedPrompt.read(episodes))
    gym.logger.warn(
        f"{world_model} is asked in this project's own words: {episodes or 'no episodes'} has no {TEMPLATE} of the"
        " published prompt; a model that was trained on that one answers worse, or not at all"
    )
    return model


def _starts(episodes: str | Path | None) -> list[FirstState]:
    return bundled_first_states() if episodes is None else recorded_first_states(episodes)


@lru_cache(maxsize=1)
def bundled_first_states() -> list[FirstState]:
    """First states of our games, bundled with the package.

    Raises:
        FileNotFoundError: The file is missing; says how to make it.
    """
    if not TEXT_STARTS.exists():
        raise FileNotFoundError(
            f"no first states at {TEXT_STARTS}; make them with: python -m rlvr_envs.simulators.text_starts"
        )
    return [FirstState(game=row.game, state=row.before) for row in read_transitions(TEXT_STARTS)]


def recorded_first_states(path: str | Path) -> list[FirstState]:
    """The states of the first 2,000 recorded transitions that can be read; a warning names lines that cannot.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: No line is a transition, or an archive is damaged; names the first line, or the archive.
    """
    broken: list[str] = []
    rows = islice(read_transitions(path, broken=broken), MAX_RECORDED_STARTS)
    found = [FirstState(game=row.game, state=row.before) for row in rows]
    warn_left_out(broken)
    if not found:
        raise ValueError(f"{path} holds no usable transition: {broken[0] if broken else 'it is empty'}")
    return found


class TextGameDreamTask:
    """Text games as a task of dreams.

    Args:
        starts: Where episodes may begin.
        game: The only game, or None.
        valid_actions: See :func:`text_game`.

    Raises:
        ValueError: No start belongs to the game; lists those there are.
    """

    option_names = ("game", "observation")
    protocol: Mapping[str, Any] = {}
    render_fps = 1.0
    render_mode = "ansi"

    def __init__(
        self, *, starts: Sequence[FirstState], game: str | None, valid_actions: ValidActions | None
    ) -> None:
        self.observation_space = Document(max_characters=MAX_STATE_CHARACTERS)
        self.action_space = Document(max_characters=MAX_ACTION_CHARACTERS)
        self._starts, self._valid_actions = starts, valid_actions
        self._game = None if game is None else self._known(game)

    def start(self, generator: np.random.Generator, options: Mapping[str, Any]) -> Start:
        """A recorded state, or the one in the options.

        Raises:
            ValueError: An unknown game, or a text that is no state.
        """
        game = self._known(options["game"]) if "game" in options else self._game
        draw = (
            generator.random()
        )  # drawn whatever is given, so that options do not change what the seed gives
        if "observation" in options:
            text = checked_observation(
                "options['observation']", self.observation_space, options["observation"]
            )
            state = parse_state(text)
            history = History(observations=(state.to_text(),), instruction=game or "")
            return Start(history=history, goal=game or "")
        fitting = [start for start in self._starts if game in (None, start.game)]
        chosen = fitting[int(draw * len(fitting))]
        history = History(observations=(chosen.state.to_text(),), instruction=chosen.game)
        return Start(history=history, goal=chosen.game)

    def judge(
        self,
        goal: str,
        prediction: Prediction,
        reading: NDArray[Any] | None,
        previous: Observation | None,
    ) -> Outcome:
        """The world model's own word."""
        state = parse_state(str(prediction.observation))
        failed = prediction.error is not None
        change = StateDifference() if previous is None or failed else difference(parse_state(previous), state)
        return Outcome(
            reward=0.0 if prediction.reward is None else prediction.reward,
            terminated=prediction.terminated,
            info={
                "state": state,
                "difference": change,
                "game": goal,
                "score": state.score,
                "won": state.game_won,
                "valid_actions": [] if self._valid_actions is None else list(self._valid_actions(state)),
            },
        )

    def ends(self, action: Any) -> bool:
        """No action ends a game by itself."""
        return False

    def picture(self, observation: Observation) -> str:
        """Objects as indented text."""
        return "\n".join(state_lines(parse_state(observation)))

    def _known(self, game: Any) -> str:
        games = sorted({start.game for start in self._starts})
        if game not in games:
            raise ValueError(
                f"no first state belongs to the game {str(game)[:80]!r}; there are {', '.join(games)}"
            )
        return str(game)
