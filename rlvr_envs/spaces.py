"""The spaces that truth and dream share, and the checks of what users put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW

PUSHT_IMAGE_PX = 64
PUSHT_FRAME_SKIP = 5  # environment steps of 0.1 s per step of the world model, as published
RT1_HEIGHT_PX, RT1_WIDTH_PX = 64, 80  # a quarter of RT-1's 256 x 320


class Document(spaces.Space[str]):
    """Texts of any kind, JSON and all scripts included, up to a number of characters.

    ``gymnasium.spaces.Text`` holds words over a small alphabet; this space holds whatever can be written as
    UTF-8. Samples are short texts of printable ASCII.

    Args:
        max_characters: Unicode code points that a text may have, at least 1.
        seed: Of the samples.

    Raises:
        ValueError: ``max_characters`` is not a whole number of at least 1.
    """

    SAMPLE_CHARACTERS = 32

    def __init__(
        self, max_characters: int = 100_000, *, seed: int | np.random.Generator | None = None
    ) -> None:
        if isinstance(max_characters, bool) or not isinstance(max_characters, int) or max_characters < 1:
            raise ValueError(f"max_characters is {max_characters!r}; it must be a whole number of at least 1")
        self.max_characters = max_characters
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed number of numbers."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A random text of at most 32 characters.

        Raises:
            ValueError: A mask or probabilities are given; there is nothing that they could choose from.
        """
        if mask is not None or probability is not None:
            raise ValueError("a Document takes neither mask nor probability")
        length = int(self.np_random.integers(min(self.SAMPLE_CHARACTERS, self.max_characters) + 1))
        return "".join(map(chr, self.np_random.integers(32, 127, length)))

    def contains(self, x: Any) -> bool:
        """Whether it is a text, short enough, and valid unicode."""
        return self.fault(x) is None

    def fault(self, text: Any) -> str | None:
        """What is wrong with a text, in words that fit after its name; None if nothing is."""
        if not isinstance(text, str):
            return f"is {_describe(text)}; expected a text"
        if len(text) > self.max_characters:
            return f"has {len(text):,} characters; at most {self.max_characters:,} are allowed"
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return (
                f"is not valid unicode: character {error.start} is a lone surrogate, U+{ord(text[error.start]):04X};"
                " decode it from bytes with errors='replace'"
            )
        return None

    def __repr__(self) -> str:
        return f"Document({self.max_characters})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Document) and other.max_characters == self.max_characters

    __hash__ = None  # type: ignore[assignment]


def pusht_observation_space(*, image_size: int = PUSHT_IMAGE_PX) -> spaces.Dict:
    """``image`` ``(S, S, 3)`` uint8 RGB and ``proprio`` ``(4,)`` float32: agent x, y (px), velocity (px/s).

    The agent goes through walls and may leave the arena, so ``proprio`` has no bounds.
    """
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, (image_size, image_size, 3), np.uint8),
            "proprio": spaces.Box(-np.inf, np.inf, (4,), np.float32),
        }
    )


def pusht_action_space(*, frame_skip: int = PUSHT_FRAME_SKIP) -> spaces.Box:
    """``(2 * frame_skip,)`` float32 in [-1, 1]: displacements x, y of consecutive steps of 0.1 s, in 100 px.

    Raises:
        ValueError: ``frame_skip`` is not a positive whole number.
    """
    if not isinstance(frame_skip, int | np.integer) or frame_skip < 1:
        raise ValueError(f"frame_skip is {frame_skip!r}; it must be a whole number of at least 1")
    return spaces.Box(-1.0, 1.0, (2 * int(frame_skip),), np.float32)


def rt1_action_space() -> spaces.Box:
    """``(13,)`` float32: RT-1's action, its parts in alphabetical order, within the ranges of its data.

    Base displacement (2) and base turn (1); ``gripper_closedness_action`` (1) in [-1, 1]; ``rotation_delta``
    (3) in rad; ``terminate_episode`` (3) in [0, 1], where 1, 0, 0 ends the episode; ``world_vector`` (3) in
    m. ``worldmodels.video.rt1_actions`` has their slices and the way from and to RT-1's dict.
    """
    return spaces.Box(RT1_LOW, RT1_HIGH, dtype=np.float32)


def frame_observation_space(height: int, width: int) -> spaces.Box:
    """``(height, width, 3)`` uint8 RGB.

    Raises:
        ValueError: A size that is not a positive whole number.
    """
    for name, size in (("height", height), ("width", width)):
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise ValueError(f"image {name} is {size!r}; it must be a whole number of at least 1")
    return spaces.Box(0, 255, (int(height), int(width), 3), np.uint8)


def checked_action(space: spaces.Space[Any], action: Any) -> tuple[Any, int]:
    """An action that the space allows, and how many of its numbers had to be clipped to the bounds.

    Numbers come back as float64, so that clipping is the only change; other spaces' actions come back as they
    are.

    Raises:
        ValueError: Wrong shape, not numbers, not finite, a text that is too long or not valid unicode, or outside
            another space without numbers.
    """
    if isinstance(space, Document):
        if fault := space.fault(action):
            raise ValueError(f"action {fault}")
        return action, 0
    if not isinstance(space, spaces.Box):
        if not space.contains(action):
            raise ValueError(f"action {action!r} is not in {space}")
        return action, 0
    try:
        values = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"action is {action!r}; expected {space.shape} numbers") from error
    if values.shape != space.shape:
        raise ValueError(
            f"action has shape {values.shape}; expected {space.shape} with numbers in"
            f" [{space.low.min():g}, {space.high.max():g}]"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"action holds a value that is not finite: {values.tolist()}; give finite numbers")
    clipped = np.clip(values, space.low, space.high)
    return clipped, int(np.count_nonzero(clipped != values))


def holds(space: spaces.Space[Any], observation: Any) -> bool:
    """Whether an observation is in a space; unlike ``contains``, a list does not pass for an array."""
    if isinstance(space, spaces.Dict):
        return (
            isinstance(observation, Mapping)
            and observation.keys() == space.keys()
            and all(holds(part, observation[key]) for key, part in space.items())
        )
    if isinstance(space, spaces.Box) and not isinstance(observation, np.ndarray):
        return False
    return bool(space.contains(observation))


def checked_observation(name: str, space: spaces.Space[Any], observation: Any) -> Any:
    """The observation itself, if the space holds it.

    Raises:
        ValueError: It does not; says for each part what was given and what is expected.
    """
    if holds(space, observation):
        return observation
    given = _describe(observation)
    if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
        given = str({key: _describe(value) for key, value in observation.items()})
    raise ValueError(f"{name} is {given}; expected {space}")


def checked_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """The reset options as a dict.

    Raises:
        ValueError: An unknown key; lists the known ones.
    """
    options = dict(options or {})
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"unknown reset option {unknown[0]!r}; the options are {', '.join(known)}")
    return options


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        bad = value.dtype.kind == "f" and not np.isfinite(value).all()
        return f"{value.dtype} {value.shape}" + (" with values that are not finite" if bad else "")
    return repr(value)[:80]
