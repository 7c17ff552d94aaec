"""Published state texts, read object by object: what is written alike is read once.

Special: a state after an action, and the states of one game, hold mostly objects that are written alike to the letter.
A text is cut between its objects and each piece is looked up before it is parsed. That is exact: a cut counts only if
every piece is a JSON object by itself, and then the text is the list of them and nothing else; any other text is read
whole. What is read once is the same Python object in every state, which makes comparing quick, so nobody may change it.

Absent on purpose: the canonical texts of this project's environments, which hold one state, read once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from worldmodels.language.game_state import (
    SCORE_KEYS,
    GameObject,
    GameState,
    check_object,
    check_scores,
    parse_state,
)

_HEAD, _BETWEEN, _TAIL = '{"game_state": [{', "}, {", "}]}"
_STATES, _PIECES = 512, 16_384  # remembered; a piece has some hundred characters


@lru_cache(maxsize=_STATES)
def read_state(text: str) -> GameState:
    """The same as ``parse_state(text)``, sharing objects with the states read before.

    Raises:
        ValueError: It is not a state.
    """
    if (pieces := _pieces(text)) is not None:
        try:
            objects = {item["uuid"]: item for item in map(_checked, pieces[:-1])}
            scores = check_scores(_parsed(pieces[-1]))
        except ValueError:
            return parse_state(text)  # which says what is wrong, and where
        if len(objects) == len(pieces) - 1 and len(scores) == len(SCORE_KEYS):
            return GameState(
                objects=objects,
                score=scores["score"],
                game_over=scores["gameOver"],
                game_won=scores["gameWon"],
            )
    return parse_state(text)


@lru_cache(maxsize=_STATES)
def read_listed(text: str) -> Sequence[Any]:
    """The elements of ``json.loads(text)["game_state"]`` as they are, objects and score state; not to be changed.

    Raises:
        ValueError: It is not JSON.
        KeyError, TypeError: It is not a JSON object with a ``game_state``.
    """
    if (pieces := _pieces(text)) is not None:
        try:
            return [*map(_parsed, pieces)]
        except ValueError:
            pass  # a piece is not whole, so what was cut was not the list of objects
    return json.loads(text)["game_state"]


def forget() -> None:
    """Read everything anew from here on, so that the time of reading can be taken."""
    for remembered in (read_state, read_listed, _parsed, _checked):
        remembered.cache_clear()


def _pieces(text: str) -> list[str] | None:
    """The objects of a text without their outer braces, if that is what lies between the cuts."""
    if text.startswith(_HEAD) and text.endswith(_TAIL):
        return text[len(_HEAD) : -len(_TAIL)].split(_BETWEEN)
    return None


@lru_cache(maxsize=_PIECES)
def _parsed(piece: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = json.loads("{" + piece + "}")
    return value


@lru_cache(maxsize=_PIECES)
def _checked(piece: str) -> GameObject:
    return check_object(_parsed(piece), where="object")
