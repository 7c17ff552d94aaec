"""Rejection sampling: ask a model several times, keep the answers that turn out to be right, to imitate them.

Special: what is right is a state reward, the same function that tables report. Every question that is done is one
line of ``answers.jsonl``, so an interrupted run goes on where it stopped and asks nothing twice; ``accepted.jsonl``
is made from it at the end, in the order of the questions. What a model wrote is data: it is compared and stored.

    reject(questions_of(rows, compact_prompt), ChatEndpoint(base_url=..., model=...), RejectionConfig(), "data/sft")

Absent: who is asked (``chat_endpoint``) and imitation (``text_sft``).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from tqdm import tqdm

from training.chat_endpoint import ChatAnswer, QuestionRefusedError
from training.rewards.states import score_answer
from training.run import write_text
from training.text_questions import TextQuestion, balanced

ANSWERS, ACCEPTED = "answers.jsonl", "accepted.jsonl"


class Asker(Protocol):
    """Answers questions, from several threads at once; for example ``ChatEndpoint``."""

    @property
    def model(self) -> str:
        """Who answers."""
        ...

    def ask(self, prompt: str, *, temperature: float, top_p: float, max_tokens: int) -> ChatAnswer:
        """One answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class RejectionConfig:
    """What to ask and what to keep.

    Attributes:
        samples: Answers to a question, at most; no more are asked for once enough are right.
        keep: Right answers that are kept of a question, at most.
        reward: An answer is right if this is 1.
        temperature: Of sampling.
        top_p: Of sampling.
        max_tokens: Longer answers are cut, and a cut answer is not right.
        unchanged_per_100: Accepted answers where nothing changes for every 100 where something does, at most; None
            keeps all. Nothing that was paid for is thrown away: ``answers.jsonl`` holds all.
        concurrency: Questions that are asked at the same time.
        max_refused: More questions that are not taken than this end the run: something else is wrong.
    """

    samples: int = 8
    keep: int = 1
    reward: Literal["exact", "official_binary"] = "exact"
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096
    unchanged_per_100: int | None = None
    concurrency: int = 8
    max_refused: int = 20

    def __post_init__(self) -> None:
        for name in ("samples", "keep", "max_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.reward not in ("exact", "official_binary"):
            raise ValueError(f"reward is {self.reward!r}; use 'exact' or 'official_binary'")


def reject(
    questions: Sequence[TextQuestion], asker: Asker, config: RejectionConfig, folder: str | Path
) -> dict[str, int]:
    """Ask all questions that the folder has no line of yet, then write ``accepted.jsonl``.

    Returns:
        Counts of questions, of accepted answers, and of all answers by what became of them.

    Raises:
        ValueError: The folder holds answers to other questions or settings, or two questions have one id.
        EndpointError: The endpoint cannot be used, or refused too many questions; what is done is kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if len({question.id for question in questions}) != len(questions):
        raise ValueError("two questions have the same id; ids must be unique")
    path = folder / ANSWERS
    done = _read_answers(path, _identity(asker, config))
    for question in questions:
        if question.id in done and done[question.id]["prompt_sha256"] != _sha256(question.prompt):
            raise ValueError(f"{path} holds answers to another prompt of {question.id!r}; use another folder")
    left = [question for question in questions if question.id not in done or done[question.id]["refused"]]
    refused = 0
    bar = tqdm(left, total=len(left), desc="ask", unit="question", disable=None)
    with path.open("a", encoding="utf-8") as file, bar, closing(_ask_all(left, asker, config)) as lines:
        for line in lines:
            file.write(json.dumps(line) + "\n")  # ASCII: a model may write what no UTF-8 file can hold
            file.flush()
            os.fsync(file.fileno())
            done[line["id"]] = line
            bar.update()
            refused += bool(line["refused"])
            if refused > config.max_refused:
                raise QuestionRefusedError(f"{refused} questions were refused; the last: {line['refused']}")
    return _write_accepted(folder / ACCEPTED, questions, done, config)


def _ask_all(
    questions: Iterable[TextQuestion], asker: Asker, config: RejectionConfig
) -> Generator[dict[str, Any], None, None]:
    """Lines as they get ready. However it ends, no thread starts another request, and what is ready is given out."""
    waiting, stop = iter(questions), threading.Event()
    with ThreadPoolExecutor(config.concurrency) as pool:
        pending: set[Future[dict[str, Any]]] = set()
        try:
            while True:
                for question in islice(waiting, config.concurrency - len(pending)):
                    pending.add(pool.submit(_ask_one, question, asker, config, stop))
                if not pending:
                    return
                ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                failures = [future.exception() for future in ready if future.exception() is not None]
                yield from (future.result() for future in ready if future.exception() is None)
                if failures:
                    stop.set()
                    for future in wait(pending).done:
                        if future.exception() is None and not future.result()["stopped"]:
                            yield future.result()
                    raise failures[0]  # type: ignore[misc]
        finally:
            stop.set()


def _ask_one(
    question: TextQuestion, asker: Asker, config: RejectionConfig, stop: threading.Event
) -> dict[str, Any]:
    kept: list[dict[str, Any]] = []
    outcomes: Counter[str] = Counter()
    refused = None
    while outcomes.total() < config.samples and len(kept) < config.keep and not stop.is_set():
        try:
            answer = asker.ask(
                question.prompt,
                temperature=config.temperature,
                top_p=config.top_p,
                max_tokens=config.max_tokens,
            )
        except QuestionRefusedError as error:
            refused = str(error)
            break
        outcome = _outcome(answer, question, config)
        outcomes[outcome] += 1
        if outcome == "right":
            kept.append({"reasoning": answer.reasoning, "answer": answer.text})
    return {
        "id": question.id,
        "prompt_sha256": _sha256(question.prompt),
        "outcomes": dict(outcomes),
        "kept": kept,
        "refused": refused,
        "stopped": stop.is_set(),
    }


def _outcome(answer: ChatAnswer, question: TextQuestion, config: RejectionConfig) -> str:
    if answer.cut:
        return "cut"
    if not answer.text.strip():
        return "empty"
    try:
        (answer.text + (answer.reasoning or "")).encode()
    except UnicodeEncodeError:
        return "no text"  # lone surrogates, which no tokenizer takes
    value = score_answer(
        answer.text,
        data_state=question.data_state,
        ground_truth=question.ground_truth,
        reward=config.reward,
    )
    return "right" if value == 1 else "wrong"


def _write_accepted(
    path: Path, questions: Sequence[TextQuestion], done: Mapping[str, Any], config: RejectionConfig
) -> dict[str, int]:
    pairs = [(question, kept) for question in questions for kept in done[question.id]["kept"]]
    chosen = balanced([question.changed for question, _ in pairs], config.unchanged_per_100)
    lines = []
    for question, kept in (pairs[place] for place in chosen):
        about = {"id": question.id, "game": question.game, "changed": question.changed}
        lines.append(json.dumps({**about, "prompt": question.prompt, **kept}) + "\n")
    write_text(path, "".join(lines))
    outcomes: Counter[str] = Counter()
    for question in questions:
        outcomes.update(done[question.id]["outcomes"])
    refused = sum(bool(done[question.id]["refused"]) for question in questions)
    return {"questions": len(questions), "refused": refused, "accepted": len(lines), **outcomes}


def _identity(asker: Asker, config: RejectionConfig) -> dict[str, Any]:
    names = ("samples", "keep", "reward", "temperature", "top_p", "max_tokens")
    return {"model": asker.model, **{name: getattr(config, name) for name in names}}


def _read_answers(path: Path, identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Lines by id; the first line of the file says what was asked for. A torn last line is cut off."""
    if not path.exists() or not (content := path.read_bytes()):
        write_text(path, json.dumps(identity) + "\n")
        return {}
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_text(path, whole.decode())
    try:
        first, *lines = (json.loads(line) for line in whole.splitlines())
        found = {line["id"]: line for line in lines if not line["stopped"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); repair or remove it") from error
    if first != identity:
        differing = sorted(key for key in {**first, **identity} if first.get(key) != identity.get(key))
        raise ValueError(
            f"{path} was made with other settings ({', '.join(f'{k} was {first.get(k)!r}' for k in differing)}); "
            "use those, or another folder"
        )
    return found


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
