"""A study on a storage outlasts its process, and goes on as if nothing had happened."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from autotune.durable.optuna_storage import StoredStudy
from autotune.durable.stated import Kept
from autotune.search import Search
from autotune.solving import solve
from autotune.testing import toy_problem
from distir.errors import DistirError
from tests.autotune.durable.conftest import PROBLEM, Searches, labels

STORAGES = ("sqlite:///study.db", "journal:study.log")
QUICK = ("--sampler", "random", "--no-compare-grid", "--no-tracking")
RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--no-tracking")


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_study_that_is_killed_goes_on_as_if_nothing_had_happened(
    searches: Searches, storage: str
) -> None:
    kept = ("--storage", storage, "--study", "mine")
    whole = searches.json(*RUN, "--trials", "9", "--seed", "3")
    (searches.folder / "begun").unlink()
    searches.killed_after(4, *RUN, *kept, "--trials", "9", "--seed", "3", seconds=0.3)
    finished = len(searches.begun()) - 1
    found = searches.json("run", *kept, "--resume", "--no-tracking")
    assert labels(found) == labels(whole)
    assert [trial["metrics"] for trial in found["trials"]] == [
        trial["metrics"] for trial in whole["trials"]
    ]
    assert found["study"] == {
        "name": "mine",
        "storage": storage,
        "resumed_trials": finished,
    }
    assert found["stopped_because"] == "trials"
    begun = searches.begun()
    assert sorted(begun) == sorted([*labels(whole), labels(whole)[finished]])  # once more: the last


@pytest.mark.slow(seconds=5)
def test_only_the_study_that_was_begun_is_resumed(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    searches.json(*RUN, *kept, "--trials", "2")
    resume = ("run", *kept, "--resume", "--no-tracking")
    assert "continue it with --resume" in searches.refused(*RUN, *kept)
    assert "there are: mine" in searches.refused(
        "run", "--storage", "sqlite:///study.db", "--study", "other", "--resume"
    )
    begun = "this is a different study: it was started with"
    said = searches.refused(*resume, "--batch-size", "32")
    assert f"{begun} batch size = 16, here with batch size = 32" in said
    assert f"{begun} objective =" in searches.refused(*resume, "--objective", "throughput")
    assert f"{begun} objective =" in searches.refused(*resume, "--objective", "train.py:time")
    file = searches.folder / "train.py"
    text = file.read_text(encoding="utf-8")
    moved = file.rename(searches.folder / "elsewhere.py")
    assert "--objective says where it is now" in searches.refused(*resume)
    found = searches.json(*resume, "--objective", "elsewhere.py:cost", "--trials", "3")
    assert len(found["trials"]) == 3
    moved.write_text(text.replace("iteration_seconds", "mfu"), encoding="utf-8")
    moved.rename(file)
    assert "has changed since the study began" in searches.refused(*resume)


@pytest.mark.parametrize(
    ("begun", "resumed", "words"),
    [
        (6, 8, "its 8 trials are made"),
        (6, 6, "its 6 trials are made"),
        (6, 3, "its 6 trials are made"),
        (1, 1, "its 1 trial is made"),
    ],
)
def test_a_study_that_ends_says_how_many_trials_it_has(
    begun: int, resumed: int, words: str, tmp_path: Path
) -> None:
    found = [
        solve(
            toy_problem(),
            Search(sampler="random", trials=trials, compare_grid=False),
            kept=Kept(storage=f"journal:{tmp_path / 'log'}", study="mine", resume=resume),
        )
        for trials, resume in ((begun, False), (resumed, True))
    ][-1]
    assert found.to_dict()["stopped_in_words"] == words
    assert len(found.trials) == max(begun, resumed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume",), "--resume needs --storage"),
        (("--study", "mine"), "--study needs --storage"),
        (("--retries", "2"), "--retries needs --storage"),
        (("--heartbeat", "5s"), "--heartbeat needs --storage"),
        (("--storage", "sqlite:///study.db"), "--storage needs --study"),
        (("--storage", "study.db", "--study", "mine"), "expected sqlite:///FILE"),
        (("--storage", "sqlite:////not/there/study.db", "--study", "mine"), "cannot be opened"),
        (("--storage", "journal:/not/there/log", "--study", "mine"), "cannot be opened"),
        (("--storage", "postgresql://u:secret@127.0.0.1:1/x", "--study", "mine"), "u:***@"),
        (("--storage", "grpc://nowhere", "--study", "mine"), "expected grpc://HOST:PORT"),
        (("--storage", "grpc://host:99999", "--study", "mine"), "expected grpc://HOST:PORT"),
        (("--storage", "sqlite:///", "--study", "mine"), "is in memory"),
        (("--storage", "sqlite:///:memory:", "--study", "mine"), "is in memory"),
        (("--storage", "nothing://here", "--study", "mine"), "expected sqlite:///FILE"),
        (("--storage", "oracle://h/x", "--study", "mine"), "try: pip install its driver"),
    ],
)
def test_what_an_option_lacks_is_said_in_a_line(
    options: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    from autotune.cli import main

    monkeypatch.chdir(str(tmp_path))
    assert main(["run", *PROBLEM, "--no-tracking", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        *(({"heartbeat": each}, "expected more than 0") for each in (0.0, -1.0, nan, inf)),
        ({"retries": -1}, "retries is -1; expected at least 0"),
        *(({"workers": each}, "workers is -?[03]; expected at least 1") for each in (0, -3)),
    ],
)
def test_what_a_program_says_of_workers_is_held_to_what_the_command_line_takes(
    numbers: dict[str, Any], said: str
) -> None:
    with pytest.raises(DistirError, match=said):
        Kept(storage="sqlite:///study.db", study="mine", **numbers)


def test_a_study_and_mlflow_have_databases_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from autotune.cli import main

    monkeypatch.chdir(tmp_path)
    kept = ("--storage", f"sqlite:///{tmp_path}/mlflow.db", "--study", "mine")
    assert main(["run", *PROBLEM, *kept, "--tracking-uri", "sqlite:///mlflow.db"]) == 2
    assert "are the same database" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("storage", ["sqlite:///none.db", "journal:none"])
def test_looking_for_a_study_makes_no_file(
    storage: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from autotune.cli import main

    monkeypatch.chdir(tmp_path)
    kept = ("--storage", storage, "--study", "mine")
    for command in (["run", *kept, "--resume"], ["work", *kept]):
        assert main(command) == 2
        assert "there is no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ['{"mine": 1}', '{"mine": 1}\n', "hello\n", "\x00\x01"])
def test_a_file_that_is_no_journal_stays_as_it_is(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(DistirError, match="this file is not a journal of studies"):
        StoredStudy.create(f"journal:{file}", "mine", [True])
    assert file.read_text() == content


def test_a_journal_may_be_empty_or_cut_short_and_says_which_line_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    url = f"journal:{file}"
    for content in ("", '{"op_', '{"op_code":0,"worker_id":"cut sh'):
        file.write_text(content)
        StoredStudy.create(url, "mine", [True])
        assert StoredStudy.names(url) == ["mine"]
    whole = file.read_text()
    file.write_text(f"{whole}no JSON\n{whole}")
    with pytest.raises(DistirError, match=f"its line {whole.count(chr(10)) + 1} is damaged"):
        StoredStudy.find(url, "mine")


def test_a_new_study_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    from autotune.cli import main

    assert main(["run"]) == 2
    assert "--model is needed" in capsys.readouterr().err


@pytest.mark.slow(seconds=5)
def test_what_means_nothing_in_a_study_does_not_keep_it_from_going_on(searches: Searches) -> None:
    """Studies of inference that were begun when what is about training was let pass."""
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    asked = ("--model", "gpt2", "--devices", "2", "--mode", "inference", *QUICK)
    searches.json("run", *asked, *kept, "--trials", "2")
    study = StoredStudy.find(f"sqlite:///{searches.folder}/study.db", "mine")
    assert study is not None
    problem = study.attributes()["problem"]
    study.describe({"problem": {**problem, "dropout": False, "optimizer": "adam"}})
    study.close()
    found = searches.json("run", *kept, "--resume", "--trials", "3", *QUICK)
    assert len(found["trials"]) == 3
    said = searches.refused("run", *kept, "--resume", "--no-tracking", "--batch-size", "3")
    assert "here with batch size = 3" in said
