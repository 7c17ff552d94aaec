"""Reads texts and values from the tokens of a compact answer, one after the other.

Special: everything that can be wrong is one exception with a reason, which never leaves the reading of answers.

Absent: what the statements mean (``compact_answers``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from worldmodels.language.words import FIRST_BYTE, FIRST_DIGIT, FIRST_WORD, Sign, Vocabulary

_MAX_DIGITS = 15


class Unreadable(Exception):
    """The tokens say nothing; the message says why."""


class Reader:
    """A place in a sequence of tokens.

    Args:
        tokens: What a model wrote.
        vocabulary: Of the tokens.
        names: Names of the objects that pointers count.
    """

    def __init__(self, tokens: Sequence[int], vocabulary: Vocabulary, names: Sequence[str]) -> None:
        self._tokens, self._vocabulary, self._names = tokens, vocabulary, names
        self._at = 0

    def peek(self) -> int:
        """The next token.

        Raises:
            Unreadable: There is none: the answer never ended.
        """
        if self._at >= len(self._tokens):
            raise Unreadable(f"the answer did not end within {len(self._tokens)} tokens")
        return self._tokens[self._at]

    def take(self) -> int:
        """The next token, and go on."""
        token = self.peek()
        self._at += 1
        return token

    def at_end(self) -> bool:
        """Whether the answer ends here."""
        return self.peek() == Sign.END

    def text(self) -> str:
        """A text: a word, several, a spelled one, or the name of an object."""
        token = self.take()
        if (place := self._vocabulary.pointed(token)) is not None:
            if place >= len(self._names):
                raise Unreadable(f"there is no object {place}; the state has {len(self._names)}")
            return self._names[place]
        if (word := self._vocabulary.word(token)) is not None:
            return word
        if token == Sign.SPELL:
            return self._spelled()
        if token == Sign.WORDS:
            parts = []
            while self.peek() != Sign.WORDS_END:
                parts.append(self.text())
            self.take()
            return " ".join(parts)
        raise Unreadable(f"{self._vocabulary.show([token])} stands where a text is expected")

    def value(self, old: Any) -> Any:
        """A value; numbers may be given as the difference from ``old``."""
        token = self.peek()
        if token >= FIRST_WORD or token in (Sign.SPELL, Sign.WORDS):
            return self.text()
        self.take()
        if token in (Sign.TRUE, Sign.FALSE):
            return token == Sign.TRUE
        if token == Sign.NULL:
            return None
        if token == Sign.EQUALS:
            negative = self.peek() == Sign.MINUS
            if negative:
                self.take()
            return -self._number() if negative else self._number()
        if token in (Sign.PLUS, Sign.MINUS):
            if isinstance(old, bool) or not isinstance(old, int | float):
                raise Unreadable(f"{Sign(token).name} changes {str(old)[:40]!r}, which is no number")
            return old + (self._number() if token == Sign.PLUS else -self._number())
        if token == Sign.FLOAT:
            return self._float()
        if token == Sign.LIST:
            items = []
            while self.peek() != Sign.LIST_END:
                items.append(self.value(None))
            self.take()
            return items
        if token == Sign.DICT:
            found: dict[str, Any] = {}
            while self.peek() != Sign.DICT_END:
                key = self.text()
                found[key] = self.value(None)
            self.take()
            return found
        raise Unreadable(f"{self._vocabulary.show([token])} stands where a value is expected")

    def _number(self) -> int:
        digits = ""
        while FIRST_DIGIT <= self.peek() < FIRST_DIGIT + 10:
            digits += str(self.take() - FIRST_DIGIT)
        if not 0 < len(digits) <= _MAX_DIGITS:
            raise Unreadable(f"a number has {len(digits)} digits; it needs 1 to {_MAX_DIGITS}")
        return int(digits)

    def _float(self) -> float:
        written = self.text()
        try:
            number = float(written)
        except ValueError:
            raise Unreadable(f"{written[:40]!r} is no number") from None
        if not math.isfinite(number):
            raise Unreadable(f"{written[:40]!r} is not finite")
        return number

    def _spelled(self) -> str:
        spelled = bytearray()
        while self.peek() != Sign.SPELLED:
            token = self.take()
            if not FIRST_BYTE <= token < FIRST_WORD:
                raise Unreadable(f"{self._vocabulary.show([token])} stands where a byte is expected")
            spelled.append(token - FIRST_BYTE)
        self.take()
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            raise Unreadable(f"{bytes(spelled[:20])!r} is not UTF-8") from None
