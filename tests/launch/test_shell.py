"""Words of shell scripts: what bash would see, as far as that is certain, and nothing is run."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.launch import LaunchError
from autotune.launch.shell import read_script

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)


def words(text: str, **given: str) -> list[str]:
    """The words of the last command."""
    return list(read_script(text, given).commands[-1])


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_quoted_words_are_read_as_they_were(listed: list[str]) -> None:
    assert words(f"run {shlex.join(listed)}") == ["run", *listed]


@pytest.mark.parametrize(
    "script",
    [
        "A=4\nrun --x $A --y=${A} '$A' \"v$A\"",
        "ARGS=(--x 1 # one\n  --y 'a b'\n)\nARGS+=(--z)\nrun \"${ARGS[@]}\" end",
        'OPTIONS="--x 1 \\\n  --y 2"\nrun $OPTIONS',
        "run --x \\\n  1 --y 2 # --z 3",
        "export A=7 B='c d'; run $A \"$B\"",
        "run ${A:-5} ${B-6}",
        "N=2; run --nodes $N && true",
        "run --x 1 2>/dev/null --y 2 </dev/null",
        "run --x 1 > >(cat) 2> >(cat -u >&2) --y 2 < <(echo a)",
        "cat <<EOF >/dev/null\nit's\nEOF\ncat <<-'A B' >/dev/null; true\n\"\n\tA B\nrun --a",
        "A=2\nrun --g $((A * 3 + 1)) $((7 / 2)) $((-7 / 2)) $(( -7 % 4 )) $((  $A-5 ))",
        ': ${T:=8}\nrun $T ${N:-"8"} ${1:-2}',
        'T=2\nif [ "$T" -gt 1 ]; then M=--sp; else M=--no; fi\nrun $M',
        "F=no\nif [ $F = yes ]; then o=a; elif [[ $F == no ]]; then o=b; else o=c; fi\nrun $o",
        "A=(x)\nif [ ! -z $A ]; then A+=(y); if [ 1 -eq 2 ]; then A+=(z); fi; fi\nrun ${A[@]}",
        "false || { echo failed >/dev/null; }\nf() { X=1; }\nX=2\nrun $X",
        "if [ 1 -gt 2 ]; then\n  run never\nelse\n  run always\nfi",
        "for i in 1; do\n  true $i\ndone; run --y",
        "A=1\nB=2\nif [ $A = 2 ] || [ $B = 2 ]; then o=a; else o=b; fi\nrun $o",
        "A=1\nB=2\nif [ $A = 2 ] && [ $B = 2 ] || [ $B -gt 1 ]; then o=a; else o=b; fi\nrun $o",
        "A=1\nif [ $A = 2 ]; then o=a; else if [ $A = 1 ]; then o=b; fi; o+=c; fi\nrun $o",
        "A=1\nif [ $A = 2 ]; then o=a; elif [ $A = 3 ] || [ $A = 1 ]; then o=b; fi\nrun $o",
        "T=4\nif (( T > 1 )); then o=a; else o=b; fi; if ((T==3)); then o=c; fi\nrun $o",
        'A=(--a)\nB=(--b)\nA+=("${B[@]}")\nA+=("c)" "(d"\n)\nrun "${A[@]}"',
        "(run --a 'b c' --c)",
        "cd / && (true; run --a)",
        "A=1\n( A=2; true $A )\nrun $A",
        'A=(x y)\n(run "${A[@]}" --b $(( (1 + 2) * 3 )))',
        "run --x $'a b' $\"c\"",
        "run --x=1\\\n2 --y",
        "A=\nB=1\nrun ${A:-d} x${A-e} ${B:+--x 2} ${B+--y} x${A:+no} x${A+yes}",
        'P=4\nO=--a\n[[ $P -gt 1 ]] && O="$O --b"\n[ $P -gt 8 ] && O=--no\nrun $O',
        "P=4\n[[ $P -gt 8 ]] || O=--b\n[ $P -gt 1 ] || O=--no\nrun $O",
        "P=4\n[ $P = 8 ] && A=1 || A=2\n[ $P = 4 ] && B=1 || B=2\nrun $A $B",
        "P=4\n[ $P = 4 ] && { A=1; B=2; }\n[ $P = 5 ] && { A=3; B=4; }\nrun $A $B",
        "P=4\n((P==4)) && ((P>1)) && A=1\nrun $A",
        "declare -a D=(--x 1 --y 'a b')\nrun \"${D[@]}\"",
        "A=8\n((X=A/4))\n(( Y = X * $A ))\n((A+=2))\nrun $X $Y $A",
        "R=(--tp 2)\nR[1]=4\nR[2]='a b'\nrun \"${R[@]}\"",
        "A=(\n  --a 'b c'  # d)\n  e\n)\nB=(${A[@]} 'f')\nrun ${B[@]}",
    ],
)
def test_scripts_are_read_as_bash_reads_them(script: str) -> None:
    seen = 'run() { printf "%s\\n" run "$@"; }\n' + script
    said = subprocess.run(["bash", "-c", seen], capture_output=True, text=True, check=True)
    commands = [list(each) for each in read_script(script).commands]
    assert said.stdout.splitlines() in commands


@pytest.mark.parametrize("script", ["run 'half", 'run "half', "run $(half", "run `half", "A=(--x"])
def test_what_is_not_closed_is_an_error(script: str) -> None:
    with pytest.raises(LaunchError, match="not closed"):
        read_script(script)


@pytest.mark.parametrize(
    "script",
    [
        "if [ -z $X ]; then TP=8; fi\nrun --tp $TP",
        "for i in 1 2; do TP=$i; done\nrun --tp $TP",
        "f() {\n TP=8\n}\nrun --tp $TP",
        "run --tp $TP",
        "run --tp $(nproc)",
        "run --tp $((NODES * 8))",
        "run --tp $((2 ** 4000))",
        "run --tp $((10#08))",
        "run --tp ${TP:+8}",
        "TP=4\ncase $SIZE in\n 7b) TP=1 ;;\n 8b|9b) TP=8 ;;\nesac\nrun --tp $TP",
        "TP=4\n[ -z $X ] && TP=8\nrun --tp $TP",
        "TP=4\ncd here || TP=8\nrun --tp $TP",
        "A=1\nTP=4\nif [ $A = 1 ] && [ $B = 1 ]; then TP=8; fi\nrun --tp $TP",
        "TP=4\nfor TP in 1 2; do :; done\nrun --tp $TP",
        "TP=4\nfor ((TP=1; TP<9; TP++)); do :; done\nrun --tp $TP",
        "TP=4\n((TP++))\nrun --tp $TP",
        "TP=4\n(( TP = 8 * 2, X = 1 ))\nrun --tp $TP",
        "TP=4\n(( TP = Y / 2 ))\nrun --tp $TP",
        "TP=4\nif [ $X = 1 ]; then (( TP = 8 )); fi\nrun --tp $TP",
        "if [ $X = 1 ]; then TP=8; else run --tp $TP; fi; run --tp $TP",
        "TP=$X\ncase $S in\n 7b) TP=1 ;;\nesac\nrun --tp $TP",
        "TP=4\nlet TP=TP*2\nrun --tp $TP",
        "TP=4\nread -r TP < file\nrun --tp $TP",
        "TP=4\nunset TP\nrun --tp $TP",
        "A=1\nTP=4\nif [ $A = 2 ] || [ $B = 1 ]; then TP=8; fi\nrun --tp $TP",
        "A=1\nTP=4\nif [ $B = 1 ]; then :; else if [ $A = 1 ]; then TP=8; fi; fi\nrun --tp $TP",
        "TP=()\nif [ $X = 1 ]; then TP+=(1); fi\nTP+=(2)\nrun --tp ${TP[@]}",
        "if [ $X = 1 ]; then : ${TP:=8}; fi\nrun --tp $TP",
        "TP=(2)\nTP[$X]=4\nrun --tp ${TP[@]}",
        "TP=(2)\nTP[0]+=4\nrun --tp ${TP[@]}",
        "TP=(2)\nTP[7]=4\nrun --tp ${TP[@]}",
        "TP=(2)\nif [ $X = 1 ]; then TP[0]=4; fi\nrun --tp ${TP[@]}",
    ],
)
def test_what_depends_on_what_runs_stays_a_variable(script: str) -> None:
    assert words(script)[-1].startswith("$")


@pytest.mark.parametrize(
    ("script", "file"),
    [
        ("A=1; source ./more.sh; run $A", "A=2"),
        ("A=1\n. more.sh\nrun $A $B", "B=3; if [ $A = 1 ]; then A=4; fi"),
        ("if [ 1 = 1 ]; then . ./more.sh; A=5; fi; run ${A:-0} x", "B=2"),
        ("A=1; . ./more.sh; A+=2; run $A", "for i in 1 2; do true; done; A=3 # no end"),
        ("A=(1)\nsource ./more.sh\nrun ${A[@]}", "A+=(2)\nA[0]=3"),
    ],
)
def test_files_that_are_read_in_are_read_as_bash_reads_them(
    script: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "more.sh").write_text(file)
    seen = 'run() { printf "%s\\n" run "$@"; }\n' + script
    said = subprocess.run(
        ["bash", "-c", seen], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = read_script(script, beside=lambda name: (tmp_path / name).read_text())
    assert said.stdout.splitlines() in [list(each) for each in (*found.commands, *found.inner)]
    assert not found.unread


def test_files_that_read_in_very_many_others_come_to_an_end() -> None:
    many = {f"{n}.sh": f". {n + 1}.sh\n" * 50 for n in range(9)}
    assert read_script(". 0.sh", beside=many.get).unread


def test_files_that_are_not_there_or_read_each_other_in_are_named() -> None:
    found = read_script("TP=2\nsource ~/.env\nsource me.sh", beside={"me.sh": ". me.sh"}.get)
    assert found.unread == ("~/.env", "me.sh")


@pytest.mark.parametrize(
    "script",
    [
        "f() {\n local TP=4\n run --tp $TP\n}\nf",
        "TP=1\nfor i in 1; do\n TP=4\n run --tp $TP\ndone",
        "TP=1; for i in 1; do if true; then TP=2; fi; TP=4; run --tp $TP; done",
        "TP=4\nif false; then TP=8; else run --tp $TP; fi",
        "TP=4\nif false; then TP=8; elif true; then TP+=0; TP=4; run --tp $TP; fi",
        "TP=4\ncase b in\n a) TP=1 ;;\n b) run --tp $TP ;;\nesac",
        "TP=4\ncase b in\n a) TP=1 ;;\n b|c) TP=5; TP=4\n run --tp $TP ;;\nesac",
    ],
)
def test_in_a_block_variables_have_the_values_that_it_gives_them(script: str) -> None:
    seen = 'run() { printf "%s\\n" run "$@"; }\n' + script
    said = subprocess.run(["bash", "-c", seen], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["run", "--tp", "4"]
    found = read_script(script)
    (inner,) = [each for each in found.inner if each[0] == "run"]
    assert inner == ("run", "--tp", "4")
    assert "TP" in found.uncertain


@pytest.mark.parametrize(
    "change",
    ["read -r TP < file", "unset TP", "((TP++))", "for TP in 1 2; do :; done", "TP[0]=2", "TP+=2"],
)
def test_what_is_stated_holds_whatever_the_script_does(change: str) -> None:
    assert words(f"TP=1\n{change}\nrun --tp $TP", TP="4") == ["run", "--tp", "4"]


def test_what_is_stated_holds_whatever_the_script_says() -> None:
    assert words("TP=2\nrun --tp $TP", TP="4") == ["run", "--tp", "4"]
    assert words("run ${SP:+--sp}", SP="1") == ["run", "--sp"]


def test_a_blank_behind_the_sign_of_a_continued_line_is_told() -> None:
    with pytest.raises(LaunchError, match=r"line 2: a blank follows the \\ at the end of the line"):
        read_script("true\nrun --a \\ \n  --b")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(LaunchError):
        read_script(text)
