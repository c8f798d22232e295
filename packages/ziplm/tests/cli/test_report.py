"""The commands report and plot, and the report at the end of compress."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ziplm.cli import main
from ziplm.cli.report import report_line
from ziplm_compressed import command_line, options_for, write_files
from ziplm_reports import write_run


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", (2.0, 3.0, 4.0))


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_report_writes_the_page_and_prints_its_path(run: Path, tmp_path: Path) -> None:
    result = invoke("report", run)
    assert (result.exit_code, result.stdout) == (0, f"{run / 'report.html'}\n")
    assert "<title>" in (run / "report.html").read_text(encoding="utf-8")
    result = invoke("report", run, "-o", tmp_path / "new folder" / "page.html")
    assert result.exit_code == 0
    assert (tmp_path / "new folder" / "page.html").is_file()


def test_plot_prints_the_files_and_the_fit(run: Path) -> None:
    result = invoke("plot", run, "--format", "svg")
    assert result.exit_code == 0, result.output
    *files, fit = result.stdout.splitlines()
    assert all(Path(file).is_file() for file in files)
    assert fit.startswith("accuracy ≈ ")


def test_plot_draws_several_runs_and_prints_the_fit_of_each(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", (2.0, 4.0), gradual=True)
    result = invoke("plot", run, other, "-o", tmp_path / "both", "--format", "svg")
    assert result.exit_code == 0, result.output
    *files, fit = result.stdout.splitlines()
    assert {Path(file).parent for file in files} == {tmp_path / "both"}
    assert fit.startswith(f"{run}: accuracy ≈ ")  # the other has too few targets
    assert invoke("plot", run, run / ".." / run.name).exit_code == 2


@pytest.mark.parametrize("command", ["report", "plot"])
@pytest.mark.usefixtures("without_extra")
def test_a_missing_extra_has_its_own_exit_code(run: Path, command: str) -> None:
    result = invoke(command, run)
    assert result.exit_code == 7
    assert 'run: pip install "ziplm[report]"' in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_folder_without_results_is_refused(tmp_path: Path, command: str) -> None:
    result = invoke(command, tmp_path)
    assert result.exit_code == 5
    assert "no finished target" in result.stderr


@pytest.mark.usefixtures("without_extra")
def test_a_finished_run_without_the_extra_says_how_to_get_a_report(run: Path) -> None:
    line = report_line(run)
    assert (
        line == f'no report was written; for one, run: pip install "ziplm[report]", then: ziplm report {run}'
    )


def test_a_failing_report_does_not_fail_a_finished_run(run: Path) -> None:
    (run / "report.html").mkdir()
    assert report_line(run).startswith("no report was written: ")
    assert report_line(run).endswith(f"; try: ziplm report {run}")


@pytest.mark.parametrize("as_json", [False, True])
def test_compress_ends_with_its_report(tmp_path: Path, as_json: bool) -> None:
    given = options_for(write_files(tmp_path), "bert", tmp_path / "run", speedup=[1.5])
    result = invoke(*command_line(given), *(["--json"] if as_json else []))
    assert result.exit_code == 0, result.output
    line = f"report: {tmp_path / 'run' / 'report.html'}"
    assert line in (result.stderr if as_json else result.stdout)
    assert (line in result.stdout) is not as_json
    assert (tmp_path / "run" / "report.html").is_file()


def test_compare_writes_one_page_about_several_runs(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", (2.0,), gradual=True)
    result = invoke("compare", run, other, "-o", tmp_path / "both.html")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'both.html'}\n")
    assert "2 runs compared" in (tmp_path / "both.html").read_text(encoding="utf-8")


def test_compare_needs_several_different_runs(run: Path, tmp_path: Path) -> None:
    for runs in ([run], [run, run / ".." / run.name]):
        result = invoke("compare", *runs, "-o", tmp_path / "both.html")
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
    assert invoke("compare", run, tmp_path).exit_code == 5
    assert not (tmp_path / "both.html").exists()
