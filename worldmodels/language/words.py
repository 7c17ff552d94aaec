"""The tokens of a compact answer: fixed signs, bytes, the words of the training data, and pointers to objects.

Special: any text can be written. A known word is one token, anything else is spelled in UTF-8 bytes. An object
of the state that is asked about is a pointer, ``size`` plus its place, so it needs no name at all.

Absent: what answers say (``compact_answers``) and where the words come from (training).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

MAX_OBJECTS = 64  # that pointers reach
MAX_NEW = 8  # objects that one answer may add


class Sign(IntEnum):
    """Tokens that mean something by themselves."""

    PAD = 0
    END = 1
    IN = 2
    ROOT = 3  # IN nothing
    GONE = 4
    DROP = 5
    NAME = 6
    TYPE = 7
    HOLDS = 8
    NEW = 9
    NAMED = 10  # a new object's name ends with its uuid, as in "water (ID: 7)"
    UUID = 11
    SCORE = 12
    OVER = 13
    WON = 14
    TRUE = 15
    FALSE = 16
    NULL = 17
    EQUALS = 18  # a whole number follows
    PLUS = 19  # the old number and this one
    MINUS = 20
    FLOAT = 21
    SPELL = 22  # bytes follow
    SPELLED = 23
    WORDS = 24  # words follow, to be joined by spaces
    WORDS_END = 25
    LIST = 26
    LIST_END = 27
    DICT = 28
    DICT_END = 29
    AT = 30  # one entry of a property that is a dict follows


FIRST_DIGIT = 32
FIRST_NEW = FIRST_DIGIT + 10
FIRST_BYTE = 64
FIRST_WORD = FIRST_BYTE + 256


class Vocabulary:
    """Ids of everything that can stand in an answer.

    Attributes:
        words: Texts that are one token each: property names, types, words of values.
        size: Number of ids that do not depend on the state; pointers follow.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Args: words: different, not empty; their order gives their ids.

        Raises:
            ValueError: A word occurs twice or is empty.
        """
        self.words = tuple(words)
        self._ids = {word: FIRST_WORD + place for place, word in enumerate(self.words)}
        if len(self._ids) != len(self.words) or "" in self._ids:
            raise ValueError("the words of a vocabulary are different from each other and not empty")
        self.size = FIRST_WORD + len(self.words)

    @classmethod
    def of(cls, texts: Iterable[str], *, at_least: int = 2) -> Vocabulary:
        """The texts that occur at least so often, the most frequent first."""
        counts: dict[str, int] = {}
        for text in texts:
            counts[text] = counts.get(text, 0) + 1
        kept = [text for text, count in counts.items() if count >= at_least and text]
        return cls(sorted(kept, key=lambda text: (-counts[text], text)))

    def write(self, text: str) -> list[int]:
        """A text as one word, as several, or spelled."""
        if text in self._ids:
            return [self._ids[text]]
        parts = text.split(" ")
        if len(parts) > 1 and all(parts):
            inner = [token for part in parts for token in self._word(part)]
            return [Sign.WORDS, *inner, Sign.WORDS_END]
        return self.spell(text)

    def spell(self, text: str) -> list[int]:
        """A text byte by byte."""
        return [Sign.SPELL, *(FIRST_BYTE + byte for byte in text.encode()), Sign.SPELLED]

    def word(self, token: int) -> str | None:
        """The text of a word token, or None if it is another one."""
        return self.words[token - FIRST_WORD] if FIRST_WORD <= token < self.size else None

    def pointed(self, token: int) -> int | None:
        """The place of the object that a token points to, or None if it is no pointer."""
        return token - self.size if token >= self.size else None

    def show(self, tokens: Sequence[int]) -> str:
        """Tokens for people."""
        return " ".join(self._shown(token) for token in tokens)

    def _word(self, text: str) -> list[int]:
        return [self._ids[text]] if text in self._ids else self.spell(text)

    def _shown(self, token: int) -> str:
        if token >= self.size:
            return f"@{token - self.size}"
        if token >= FIRST_WORD:
            return self.words[token - FIRST_WORD]
        if token >= FIRST_BYTE:
            return repr(chr(token - FIRST_BYTE))
        if token >= FIRST_NEW:
            return f"new{token - FIRST_NEW}"
        return str(token - FIRST_DIGIT) if token >= FIRST_DIGIT else Sign(token).name
