"""`autotune validate`: files in, tables and JSON out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.validation import make_report, predict, read_rows
from distir.cost import load_stack
from distir.errors import DistirError
from tests.validation.rows import BASE, case, write_csv

KEYS = {
    "rows_used",
    "rows_excluded",
    "mape",
    "median_ape",
    "bias",
    "band_coverage",
    "band95_coverage",
    "spearman",
    "regret",
    "memory_mape",
    "oom_rows",
    "oom_recall",
    "oom_precision",
}

STATED = {"recompute": "none", "zero_stage": "none"}
"""What decides whether a run fits, stated."""


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Four runs: two that compete, one that ran out of memory, one that cannot be used."""
    tp, dp = {"tp": "4", "dp": "2"}, {"tp": "1", "dp": "8"}
    return write_csv(
        tmp_path / "runs.csv",
        {"id": "a", **tp, "iteration_time_s": "0.2"},
        {"id": "b", **dp, "iteration_time_s": "0.1"},
        {"id": "c", "source_group": "there", "iteration_time_s": "", "flags": "OOM", **STATED},
        {"id": "d", "source_group": "there", "micro_batch": ""},
    )


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["validate", *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_tables(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, str(measured))
    assert {"sources", "moe", "hardware", "overall"} <= set(found)
    assert set(found["sources"]) == {"here", "there"}
    for table in (found["sources"], found["hardware"]):
        assert all(set(each) == KEYS for each in table.values())
    assert set(found["overall"]) == KEYS
    assert found["overall"]["rows_used"] == 3
    there = found["sources"]["there"]
    assert there["rows_excluded"] == {"micro_batch not stated": 1}
    assert there["mape"] is None
    assert there["oom_recall"] == 0.0


def test_every_row_has_its_band(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, str(measured))
    rows = {each["id"]: each for each in found["rows"]}
    assert set(rows) == {"a", "b", "c"}
    assert {each["source"] for each in rows.values()} == {"here", "there"}
    for each in rows.values():
        low, high = each["band"]
        least, most = each["band95"]
        assert 0 < least < low < each["predicted_seconds"] < high < most
        assert any(said.startswith("software: ") for said in each["assumptions"])
    assert rows["a"]["measured_seconds"] == 0.2
    assert rows["c"]["measured_seconds"] is None
    within = [
        rows[name]["band"][0] <= rows[name]["measured_seconds"] <= rows[name]["band"][1]
        for name in ("a", "b")
    ]
    assert found["sources"]["here"]["band_coverage"] == sum(within) / 2


def test_a_row_beyond_measured_runs_says_so_and_has_a_wider_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = {"num_gpus": "8192", "dp": "2048", "global_batch": "4096"}
    path = write_csv(tmp_path / "runs.csv", {"id": "within"}, {"id": "beyond", **huge})
    within, beyond = json_of(capsys, str(path))["rows"]
    assert (within["id"], beyond["id"]) == ("within", "beyond")
    said = [each for each in beyond["assumptions"] if each.startswith("beyond measured runs")]
    assert len(said) == 1
    assert "8,192 devices" in said[0]
    assert not any(each.startswith("beyond") for each in within["assumptions"])
    widths = [each["band"][1] / each["predicted_seconds"] for each in (within, beyond)]
    assert widths[0] < widths[1]


def test_memory_of_a_stack_that_does_not_claim_it_is_said_not_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {"peak_memory_gb": "20", "mem_unit": "GB allocated"}
    of = {"known": "megatron-core", "own": "nanotron"}
    told = [{"id": name, "source": source, **held} for name, source in of.items()]
    file = write_csv(tmp_path / "runs.csv", *told)
    rows = {each["id"]: each for each in json_of(capsys, str(file))["rows"]}
    known, own = rows["known"], rows["own"]
    assert {each["measured_memory_bytes"] for each in rows.values()} == {20e9}
    assert all(each["fits"] and each["predicted_memory_bytes"] > 0 for each in rows.values())
    assert (known["memory_claimed"], own["memory_claimed"]) == (True, False)
    said = [each for each in own["assumptions"] if each.startswith("memory with nanotron is not")]
    assert len(said) == 1
    assert not any("is not claimed" in each for each in known["assumptions"])
    main(["validate", str(file)])
    assert "memory with nanotron is not claimed" in capsys.readouterr().out


def test_out_of_memory_is_judged_where_the_row_says_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three runs are stated and one of them ran out, unforeseen. The fourth, which cannot fit, says
    not what is recomputed: it may have been that."""
    ran_out = {"iteration_time_s": "", "flags": "OOM", **STATED}
    large = {"hidden": "32768", "ffn_hidden": "131072", "num_layers": "40"}
    file = write_csv(
        tmp_path / "runs.csv", ran_out, STATED, {**STATED, **large}, {"zero_stage": "none", **large}
    )
    overall = json_of(capsys, str(file))["overall"]
    assert (overall["rows_used"], overall["oom_rows"]) == (4, 3)
    assert (overall["oom_recall"], overall["oom_precision"]) == (0.0, 0.0)


def test_errors_are_those_of_the_simulator(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json_of(capsys, str(measured), "--source", "here")
    errors = {each["id"]: each for each in found["worst"]}
    a, b = errors["a"], errors["b"]
    assert a["error"] == pytest.approx(a["predicted_seconds"] / 0.2 - 1)
    assert found["sources"]["here"]["mape"] == pytest.approx(
        (abs(a["error"]) + abs(b["error"])) / 2
    )
    assert found["sources"]["here"]["bias"] == pytest.approx((a["error"] + b["error"]) / 2)
    wrong = a["predicted_seconds"] < b["predicted_seconds"]
    assert found["sources"]["here"]["regret"] == pytest.approx(1.0 if wrong else 0.0)
    assert a["predicted_seconds"] == pytest.approx(sum(a["seconds"].values()))


def test_a_stack_can_be_chosen(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(*options: str) -> list[float]:
        worst = json_of(capsys, str(measured), *options)["worst"]
        return [each["predicted_seconds"] for each in sorted(worst, key=lambda e: e["id"])]

    ideal, eager = seconds("--stack", "ideal"), seconds("--stack", "fsdp-eager")
    assert all(a < b for a, b in zip(ideal, eager, strict=True))


def test_the_report_names_what_was_left_out(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(measured)]) == 0
    shown = capsys.readouterr().out
    assert "micro_batch not stated" in shown
    assert "here" in shown


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_the_plot_is_drawn(
    measured: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    json_of(capsys, str(measured), "--plot", str(path))
    begin = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!DOCTYPE html>"}[suffix]
    assert path.read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty; expected a header"),
        ("a,b\n1,2\n", "the header has no columns hardware"),
        (",".join(BASE) + "\n1,2\n", "line 2: 2 cells, but the header has"),
        (",".join([*BASE, "hardware"]) + "\n", "hardware more than once"),
        ('"a', "line 1: not CSV"),
    ],
)
def test_a_bad_file_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content, encoding="utf-8")
    assert main(["validate", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    ("separator", "decimal_point"), [(",", "."), (";", "."), (";", ","), ("\t", ".")]
)
def test_files_as_spreadsheets_write_them_say_the_same(
    tmp_path: Path, separator: str, decimal_point: str
) -> None:
    path = write_csv(tmp_path / "runs.csv", {"notes": "none"}, {"flags": "OOM"})
    expected = read_rows(path)
    assert [each.measured_seconds for each in expected] == [0.5, 0.5]
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    text = "\r\n".join([head.upper(), *lines]).replace(",", separator)
    path.write_bytes(text.replace("0.5", f"0{decimal_point}5").encode("utf-8-sig"))
    read = read_rows(path)
    assert [each.number_of("iteration_time_s") for each in read] == [0.5, 0.5]
    same = [{**each.values, "iteration_time_s": "0.5"} for each in read]
    assert same == [each.values for each in expected]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.csv", tmp_path, binary):
        with pytest.raises(DistirError, match=str(path)):
            read_rows(path)


def test_unknown_names_are_refused(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--source", "nowhere"], ["--stack", "nothing"], ["--plot", "a.gif"]):
        assert main(["validate", str(measured), *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_plan_that_cannot_be_simulated_is_counted(tmp_path: Path) -> None:
    outcomes, refused = predict([case(heads="3", hidden="255", tp="2")])
    assert outcomes == []
    assert [each.reason for each in refused] == ["not simulated"]
    assert "is not divisible by" in refused[0].detail


def test_rows_share_planners_without_changing_results() -> None:
    alone, _ = predict([case()])
    together, _ = predict([case(tp="1", dp="8"), case(), case(global_batch="64"), case()])
    same = [each for each in together if each.case == alone[0].case]
    assert len(same) == 2
    assert all(each.seconds == alone[0].seconds for each in same)
    assert all(each.memory_bytes == alone[0].memory_bytes for each in same)


def test_every_software_has_a_stack() -> None:
    from autotune.validation.software import known_software

    for software in known_software():
        assert load_stack(software.stack).name == software.stack


def test_mixtures_of_experts_stand_apart() -> None:
    mixture = case(gated_mlp="yes", kv_heads="4", num_experts="4", moe_topk="2", ep="2")
    outcomes, refused = predict([case(), mixture])
    report = make_report(outcomes, refused)
    assert (report.overall.rows_used, len(refused)) == (1, 0)
    assert [each.rows_used for each in report.moe.values()] == [1]
