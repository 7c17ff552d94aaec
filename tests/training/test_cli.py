"""The commands of ``rlvr-world`` with tiny settings, through the same entry point as the console script."""

import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
from PIL import Image

from rlvr_envs.text_dreams import text_game
from tests.rlvr_envs.test_text_dreams import Rules
from tests.worldmodels.language.tiny_slots import tiny_slot_world
from training.__main__ import COMMANDS, TRACEBACK_VARIABLE, main
from training.commands.collect import report
from training.commands.evaluate import MODELS
from training.commands.play_text import text_episode
from training.fit import seeded
from training.pictures import CAPTION_PX, GAP_PX, PANEL_PX
from training.provenance import weights_sha256
from training.readers import PoseReader, PoseReaderConfig
from training.text_slots import slot_world
from worldmodels.api import Episode
from worldmodels.checkpoints import bundled, save, tokenizer_config, world_config
from worldmodels.episodes import EpisodeStore, write_all
from worldmodels.language.slot_world import slot_config
from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A world model with random weights in the format of the bundled ones."""
    tokenizer = seeded(lambda: GlobalTokenizer(GlobalTokenizerConfig()), 0)
    sizes = ObjectDynamicsConfig(hidden_size=32, layers=1, intermediate_size=64, stem_width=32)
    dynamics = seeded(lambda: ObjectDynamics(sizes, SlotLayout()), 1)
    config = world_config(ObjectWorldModel(tokenizer, dynamics), tokenizer="tokenizer", protocol={})
    folder = save(tmp_path_factory.mktemp("models") / "tiny", dynamics, config, card="# Tiny\n")
    save(folder / "tokenizer", tokenizer, tokenizer_config(tokenizer), card="# Tiny tokenizer\n")
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """128 collected episodes."""
    folder = tmp_path_factory.mktemp("data") / "pusht"
    main(["collect", "pusht", "--episodes", "128", "--folder", str(folder), "--processes", "1"])
    return folder


def run(capsys, *arguments):
    """Exit status, standard output and standard error of a command."""
    status = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *arguments):
    """The one line that a command with bad input prints."""
    status, _, error = run(capsys, *arguments)
    assert status == 2
    lines = [line for line in error.splitlines() if line.startswith("rlvr-world: ")]
    assert len(lines) == 1
    assert "Traceback" not in error
    return lines[0]


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "training", *map(str, arguments)], text=True, stderr=subprocess.PIPE, **options
    )


def test_help_is_quick_and_lists_the_commands():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = start("--help", stdout=subprocess.PIPE)
        text, _ = process.communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: other processes share the machine, and waiting for them is not this command's fault.
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert process.returncode == 0
    assert re.findall(r"• (\w+)", text) == list(COMMANDS)
    assert set(COMMANDS) >= {"demo", "list", "play", "collect", "train", "plan", "evaluate"}
    assert min(seconds) < 1


def test_commands_are_imported_without_torch_or_simulators():
    heavy = "{'torch', 'pymunk', 'pygame', 'cv2', 'gymnasium', 'transformers'}"
    code = f"import sys, training.__main__; print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_list(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0
    for name in ("RLVRWorld/PushT-v0", "RLVRWorld/PushT-Sim-v0", "pusht-base", "pusht-rlvr", "pusht-reader"):
        assert name in out


def test_collect_reports_and_continues(capsys, tmp_path):
    folder = tmp_path / "pusht"
    arguments = ["collect", "pusht", "--folder", folder, "--processes", "1", "--episodes"]
    status, out, _ = run(capsys, *arguments, 1)
    assert status == 0
    assert f"data: {folder} (128 episodes" in out
    assert re.search(r"push +│ +128 │ +[1-9]\d*%", out)  # the first block of the mix is scripted pushing
    sizes = {name: int(n) for name, n in re.findall(r"(train|validation|test) +│ +(\d+)", out)}
    assert sum(sizes.values()) == 128
    first = EpisodeStore(folder).digest()
    run(capsys, *arguments, 128)
    assert EpisodeStore(folder).digest() == first  # nothing was added or changed
    run(capsys, *arguments, 129)
    assert len(EpisodeStore(folder)) == 256


def test_the_report_knows_episodes_that_were_made_elsewhere(capsys, tmp_path):
    state = np.zeros((3, 7))
    state[2, 2] = 5.0  # the block moves in the second of two steps
    episodes = [
        Episode(
            id=name,
            observations={"image": np.zeros((3, 2, 2, 3), np.uint8)},
            actions=np.zeros((2, 10)),
            rewards=np.zeros(2),
            info={"state": state},
        )
        for name in ("pusht_noise-train-0", "pusht-0-00003-000")
    ]
    report(write_all(tmp_path, episodes))
    out = capsys.readouterr().out
    assert re.search(r"\(made elsewhere\) +│ +1 │ +50%", out)
    assert re.search(r"expert +│ +1 │ +50%", out)


@pytest.mark.slow
def test_an_interrupted_collection_says_how_to_go_on(tmp_path):
    folder = tmp_path / "pusht"
    process = start("collect", "pusht", "--folder", folder, "--processes", 1, "--episodes", 100_000)
    deadline = time.monotonic() + 60
    while not (folder / "index.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    last = error.strip().splitlines()[-1]
    assert last == f"rlvr-world: finished blocks are kept in {folder}; run the same command again to go on"
    assert "Traceback" not in error
    assert len(EpisodeStore(folder)) % 128 == 0


@pytest.mark.parametrize("policy", ["zero", "random", "expert-replay"])
def test_play_the_simulator(capsys, tmp_path, policy):
    status, out, _ = run(
        capsys, "play", "RLVRWorld/PushT-Sim-v0", "--policy", policy, "--gif", tmp_path / "new" / "a.gif"
    )
    assert status == 0
    assert f"film: {tmp_path / 'new' / 'a.gif'}" in out
    film = Image.open(tmp_path / "new" / "a.gif")
    assert film.n_frames > 1
    panels = film.convert("RGB").width
    if policy == "expert-replay":  # by construction: the goal is where these actions lead
        assert re.search(r"step \d+", out)
    else:
        assert panels > 200


@pytest.mark.gl
@pytest.mark.parametrize("policy", ["zero", "random", "expert-replay"])
def test_play_drawers(capsys, tmp_path, policy):
    gif = tmp_path / "a.gif"
    status, out, _ = run(capsys, "play", "RLVRWorld/RT1-Drawer-Sim-v0", "--policy", policy, "--gif", gif)
    assert status == 0
    assert re.search(r"│ +112 │", out)  # no behaviour ends the episode
    if policy != "random":  # which may do the task by chance
        assert bool(re.search(r"│ step \d+ +│", out)) == (policy == "expert-replay")
    assert Image.open(gif).n_frames > 10


@pytest.mark.gl
@pytest.mark.slow
def test_play_drawers_shows_the_dream_beside_the_truth_for_a_whole_episode(capsys, tmp_path):
    """The command of the README: 112 steps under the same actions, sixteen windows of the bundled model."""
    gif = tmp_path / "drawer.gif"
    status, out, _ = run(capsys, "play", "RLVRWorld/RT1-Drawer-v0", "--policy", "expert-replay", "--gif", gif)
    assert status == 0
    steps, in_truth, in_dream = re.search(r"│ +0 │ +(\d+) │ (.+?) +│ (.+?) +│", out).groups()
    assert steps == "112"
    assert in_truth.startswith("step ")
    assert in_dream == "no" or in_dream.startswith("step ")
    film = Image.open(gif)
    assert film.n_frames == 113
    pages = []
    for page in (0, 112):
        film.seek(page)
        picture = np.asarray(film.convert("RGB"), dtype=np.int16)[CAPTION_PX : CAPTION_PX + PANEL_PX]
        assert picture.shape[1] == 2 * (160 + GAP_PX) + GAP_PX
        pages.append((picture[:, GAP_PX:][:, :160], picture[:, 2 * GAP_PX + 160 :][:, :160]))
    (truth_before, dream_before), (truth_after, dream_after) = pages
    assert np.abs(truth_before - dream_before).mean() < 3  # both begin with the same frame
    assert np.abs(truth_after - truth_before).mean() > 5  # something happens, in both
    assert np.abs(dream_after - dream_before).mean() > 5
    assert np.abs(truth_after - dream_after).max() > 50  # and the dream is no copy


@pytest.mark.parametrize("policy", ["zero", "random", "expert-replay"])
def test_play_texts_gives_a_transcript(capsys, tmp_path, monkeypatch, policy):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "play", "RLVRWorld/TextGame-Sim-v0", "--policy", policy, "--episodes", 2)
    assert status == 0
    assert len(re.findall("boil-water", out)) == 2
    assert bool(re.search(r"│ +\d+ │ boil-water │ +\d+ │ yes", out)) == (policy == "expert-replay")
    assert not list(tmp_path.iterdir())  # no film


def test_play_texts_shows_where_the_dream_goes_wrong():
    # A world model that knows the rules, and one with random weights.
    truth = gymnasium.make("RLVRWorld/TextGame-Sim-v0")
    lines, row = text_episode(truth, text_game(world_model=Rules()), "expert-replay", 0)
    assert {said for _, _, said in lines} == {"the same"}
    assert row[3:] == ("yes", "yes", f"{len(lines)} of {len(lines)}")
    lines, row = text_episode(truth, text_game(world_model=tiny_slot_world()), "expert-replay", 0)
    assert row[4] == "no"
    assert any(said.startswith("unreadable: ") for _, _, said in lines)


def test_collect_text_games(capsys, tmp_path):
    folder = tmp_path / "texts"
    status, out, _ = run(capsys, "collect", "textgame", "--episodes", 1, "--folder", folder)
    assert status == 0
    assert re.search(r"posttrain", out)
    assert sorted(path.name for path in folder.iterdir()) == [
        "posttrain.jsonl.gz",
        "test.jsonl.gz",
        "train.jsonl.gz",
        "validation.jsonl.gz",
    ]
    assert "have no seed" in refused(capsys, "collect", "textgame", "--seed", 1, "--folder", folder)

    model = tiny_slot_world().model
    save(tmp_path / "tiny", model, {**slot_config(model), "protocol": {}}, card="tiny\n")
    more = ("--episodes", 1, "--folder", folder, "--world-model")
    status, _, error = run(capsys, "collect", "textgame", *more, tmp_path / "tiny")
    assert status == 0, error
    digest = weights_sha256(slot_world(str(tmp_path / "tiny")).model)[:8]
    assert {path.name for path in folder.glob("*-mistaken*")} == {
        f"posttrain-mistaken-{digest}.jsonl.gz",
        f"train-mistaken-{digest}.jsonl.gz",
    }
    alone = tmp_path / "alone"  # the other files need not be there
    more_alone = ("--episodes", 1, "--folder", alone, "--world-model", tmp_path / "tiny")
    assert run(capsys, "collect", "textgame", *more_alone)[0] == 0
    assert "SlotWorldModel" in refused(capsys, "collect", "textgame", *more, "pusht-base")
    assert "only text games" in refused(capsys, "collect", "pusht", *more, tmp_path / "tiny")


def test_play_shows_the_dream_beside_the_truth(capsys, tmp_path, checkpoint):
    widths = {}
    for env_id, more in (("RLVRWorld/PushT-Sim-v0", ()), ("RLVRWorld/PushT-v0", ("--model", checkpoint))):
        gif = tmp_path / "play.gif"
        status, out, _ = run(capsys, "play", env_id, "--gif", gif, "--episodes", 2, *more)
        assert status == 0
        assert len(re.findall(r"│ +20 │", out)) == 2  # both episodes, whole
        widths[env_id] = Image.open(gif).width
    truth, dream = widths.values()
    assert dream > truth  # one panel more


def test_play_is_a_function_of_the_seed(capsys, tmp_path, checkpoint):
    films = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        gif = tmp_path / f"{name}.gif"
        run(capsys, "play", "RLVRWorld/PushT-v0", "--gif", gif, "--model", checkpoint, "--seed", seed)
        films.append(gif.read_bytes())
    assert films[0] == films[1] != films[2]


def test_demo(capsys, tmp_path, checkpoint):
    status, out, error = run(
        capsys,
        *("demo", "--folder", tmp_path / "demo", "--model", checkpoint),
        *("--problems", 2, "--samples", 8, "--iterations", 2),
    )
    assert status == 0
    assert re.search(r"tiny: \d of 2 goals reached", out)
    assert "action/s" in error  # the progress bar's rate
    with (
        Image.open(tmp_path / "demo" / "demo.gif") as film,
        Image.open(tmp_path / "demo" / "demo.png") as strip,
    ):
        assert 2 <= film.n_frames <= 11
        assert strip.width > strip.height


def test_plan(capsys, tmp_path, checkpoint, data):
    arguments = (
        *(
            "plan",
            "pusht",
            "--models",
            checkpoint,
            "oracle",
            "random",
            "--data",
            data,
            "--split",
            "validation",
        ),
        *("--episodes", 1, "--processes", 1, "--rows", "random policy", "stay"),
        *("--folder", tmp_path / "run", "--results", tmp_path / "results"),
    )
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "random policy" in out
    assert f"results: {tmp_path / 'results' / 'pusht-plan.json'}" in out
    assert (tmp_path / "results" / "pusht-plan.json").exists()


@pytest.mark.parametrize("task", ["pusht", "drawer", "textgame"])
def test_evaluate_without_models_takes_bundled_ones(capsys, tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    assert MODELS[task]
    assert set(MODELS[task]) <= set(bundled())
    # Of all that the command needs only the data are missing.
    assert "none-here" in refused(capsys, "evaluate", task, "--data", "none-here")


@pytest.mark.slow
def test_evaluate(capsys, tmp_path, checkpoint, data):
    sizes = PoseReaderConfig(width=8, hidden=16)
    reader = save(
        tmp_path / "reader",
        seeded(lambda: PoseReader(sizes), 2),
        {"kind": "pose_reader", "reader": dataclasses.asdict(sizes)},
        card="# Tiny reader\n",
    )
    arguments = (
        *("evaluate", "pusht", "--models", checkpoint, "--data", data, "--split", "validation"),
        *(
            "--reader",
            reader,
            "--windows",
            4,
            "--folder",
            tmp_path / "run",
            "--results",
            tmp_path / "results",
        ),
    )
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "copy last frame" in out
    assert f"results: {tmp_path / 'results' / 'pusht-prediction.json'}" in out
    assert (tmp_path / "results" / "pusht-prediction.json").exists()


@pytest.mark.slow
def test_train_stops_at_an_existing_run_and_resumes(capsys, tmp_path, data):
    arguments = ("train", "pusht-reader", "--data", data, "--folder", tmp_path / "reader", "--steps", 2)
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert f"model: {tmp_path / 'reader' / 'model'}" in out
    assert "already holds a run" in refused(capsys, *arguments)
    status, _, _ = run(capsys, *arguments, "--resume")
    assert status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("play", "RLVRWorld/PushT-v1"),
            "no environment 'RLVRWorld/PushT-v1'.*did you mean 'RLVRWorld/PushT-v0'",
        ),
        (("play", "RLVRWorld/PushT-Sim-v0", "--model", "x"), "is a simulator and has no world model"),
        (("play", "RLVRWorld/PushT-v0", "--model", "pusht-bse"), "no checkpoint 'pusht-bse'"),
        (("play", "RLVRWorld/PushT-v0", "--model", "a", "--tokenizer", "b"), "a drawer environment only"),
        (("play", "RLVRWorld/PushT-Sim-v0", "--episodes", 0), "--episodes is 0; it must be at least 1"),
        (("collect", "pusht", "--episodes", 0), "--episodes is 0; it must be at least 1"),
        (("collect", "pusht", "--threads", 0), "--threads is 0; it must be at least 1"),
        (("train", "pusht-rl"), "no recipe 'pusht-rl'.*did you mean 'pusht-rlvr'"),
        (("train", "pusht-base", "--steps", -1), "--steps is -1; it must be at least 1"),
        (("train", "pusht-reader", "--data", "/no/such/folder"), "no episodes in /no/such/folder.*collect"),
        (("plan", "pusht", "--models", "nothing-here"), "no checkpoint 'nothing-here'"),
        (("evaluate", "pusht", "--windows", 0), "--windows is 0; it must be at least 1"),
        (("evaluate", "pusht", "--models", "nothing-here"), "no checkpoint 'nothing-here'"),
        (("evaluate", "bytesized32"), "no model of bytesized32 is bundled.*--models runs/"),
        (("demo", "--model", "/no/such/model"), "no checkpoint '/no/such/model'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, refused(capsys, *arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ("play", "RLVRWorld/PushT-Sim-v0", "--gif"),
        ("demo", "--folder"),
        ("collect", "pusht", "--folder"),
        ("plan", "pusht", "--results"),
        ("evaluate", "pusht", "--results"),
        ("train", "pusht-reader", "--data", "{data}", "--folder"),
    ],
)
def test_an_unwritable_place_is_named(capsys, tmp_path, monkeypatch, data, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    place = tmp_path / "file" / "inside"
    line = refused(capsys, *(str(a).format(data=data) for a in arguments), place)
    assert str(place.parent) in line
    assert re.search("cannot write", line)


def test_an_unknown_command_is_refused(capsys):
    status, _, error = run(capsys, "dance")
    assert status == 2
    assert "dance" in error


def test_the_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    with pytest.raises(ValueError, match="no recipe"):
        main(["train", "nothing"])


def test_one_thread_is_passed_on(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    refused(capsys, "train", "nothing")
    assert os.environ["OMP_NUM_THREADS"] == "1"
