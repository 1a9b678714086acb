"""Settings: what the configuration says, what the command line says, and what is told of mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CLIPPED, Amplint

from amplint.config import ConfigError, Configuration, Selection, Settings, read_config, rules_of, settings_from
from amplint.finding import Confidence, Severity


def codes(*layers: Selection, min_severity: Severity | None = None) -> set[str]:
    return {rule.code for rule in Settings(layers=layers, min_severity=min_severity).enabled_rules()}


def settings(text: str, folder: Path, name: str = "amplint.toml") -> Settings:
    (folder / name).write_text(text)
    return read_config(folder / name)


def test_every_key_is_read(here: Path) -> None:
    read = settings(
        """
        select = ["AMP2"]
        ignore = ["clip-before-unscale"]
        extend-select = ["AMP101"]
        per-file-ignores = {"tests/*" = ["AMP"]}
        exclude = ["a"]
        extend-exclude = ["b"]
        torch = ">=2.4"
        min-severity = "error"
        min-confidence = "low"
        baseline = "known.json"
        scaler-factories = ["project.amp.make_scaler"]
        optimizer-factories = ["project.optim.make"]
        clip-functions = ["project.clip"]
        backward-functions = ["project.backward"]
        device = "cuda:1"
        """,
        here,
    )
    assert read.root == here
    assert read.layers == (Selection(("AMP2",), ("AMP101",), ("clip-before-unscale",)),)
    assert read.excluded == ("a", "b")
    assert (read.torch, read.min_severity, read.min_confidence) == ("2.4", Severity.ERROR, Confidence.LOW)
    assert read.baseline == here / "known.json"
    assert read.scaler_factories == ("project.amp.make_scaler",)
    assert read.device == "cuda:1"
    assert "AMP201" in read.ignored_in("tests/a.py")
    assert not read.ignored_in("src/a.py")


def test_a_byte_order_mark_is_no_mistake(here: Path) -> None:
    assert settings('\ufeffmin-severity = "error"', here).min_severity is Severity.ERROR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('selct = ["AMP201"]', "unknown key 'selct'; did you mean 'select'?"),
        ('min_severity = "error"', "unknown key 'min_severity'; did you mean 'min-severity'?"),
        ('select = ["AMP777"]', "select: unknown rule 'AMP777'"),
        ('ignore = ["clip-befor-unscale"]', "did you mean 'clip-before-unscale'?"),
        ('select = "AMP201"', "select: must be a list of strings"),
        ('min-severity = "fatal"', "must be one of info, warning, error"),
        ('min-confidence = "hihg"', "did you mean 'high'?"),
        ('torch = "new"', "torch: must be a torch version"),
        ("torch = 2.4", "torch: must be a string"),
        ('device = "tpu"', "device: must be auto, cpu, cuda"),
        ("per-file-ignores = []", "must be a table"),
        ('per-file-ignores = { "!" = ["AMP201"] }', "per-file-ignores: '!' is no pattern"),
        ('exclude = ["!"]', "exclude: '!' is no pattern"),
        ('clip-functions = ["my clip"]', "clip-functions: must be dotted names, which 'my clip' is not"),
        ("x =", "amplint.toml"),
    ],
)
def test_mistakes_are_named_with_their_file(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(text, here)
    assert message in str(error.value)
    assert "amplint.toml" in str(error.value)


def test_the_more_exact_selector_wins_and_ignore_wins_a_tie() -> None:
    assert "AMP201" in codes(Selection(("AMP201",), (), ("AMP2",)))
    assert "AMP203" not in codes(Selection(("AMP201",), (), ("AMP2",)))
    assert "AMP201" not in codes(Selection(("AMP2",), (), ("AMP201",)))
    assert "AMP201" not in codes(Selection(("AMP201",), (), ("clip-before-unscale",)))
    assert "AMP201" not in codes(Selection(None, (), ("AMP2",)))


def test_a_selection_starts_anew_and_an_extension_does_not() -> None:
    below = Selection(("AMP1",), (), ("AMP101",))
    assert codes(below, Selection(("AMP101",))) == {"AMP101"}
    assert "AMP103" in codes(below, Selection(None, ("AMP201",)))
    assert "AMP201" in codes(below, Selection(None, ("AMP201",)))
    assert "AMP101" not in codes(below, Selection(None, ("AMP201",)))


def test_info_rules_run_on_request_only() -> None:
    info = {rule.code for rule in rules_of("ALL") if rule.severity is Severity.INFO}
    for code in info:
        assert code not in codes()
        assert code in codes(min_severity=Severity.INFO)
        assert code in codes(Selection((code,)))
        assert code not in codes(Selection((code,)), min_severity=Severity.WARNING)
    assert not info & codes(Selection(("AMP",)))


def test_rules_are_named_by_code_prefix_or_name() -> None:
    assert [r.code for r in rules_of("amp201")] == ["AMP201"]
    assert [r.code for r in rules_of("clip-before-unscale")] == ["AMP201"]
    assert len(rules_of("AMP2")) > 1
    assert rules_of("AMP") == rules_of("all")
    with pytest.raises(ConfigError):
        rules_of("")


def test_the_nearest_configuration_counts_for_each_file(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.amplint]\nselect = ["AMP1"]\n')
    (here / "sub").mkdir()
    (here / "sub" / "amplint.toml").write_text('select = ["AMP2"]\n')
    (here / "other").mkdir()
    (here / "other" / "pyproject.toml").write_text("[tool.else]\n")
    configuration = Configuration()
    assert configuration.for_folder(here).layers[0].select == ("AMP1",)
    assert configuration.for_folder(here / "sub").layers[0].select == ("AMP2",)
    assert configuration.for_folder(here / "other").root == here
    assert Configuration(isolated=True).for_folder(here).layers == ()
    explicit = Configuration(explicit=here / "sub" / "amplint.toml").for_folder(here)
    assert explicit.layers[0].select == ("AMP2",)


def test_amplint_toml_goes_before_pyproject_in_one_folder(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.amplint]\nselect = ["AMP1"]\n')
    (here / "amplint.toml").write_text('select = ["AMP2"]\n')
    assert Configuration().for_folder(here).layers[0].select == ("AMP2",)


def test_the_command_line_overrides(here: Path) -> None:
    (here / "amplint.toml").write_text('torch = "2.4"\nextend-exclude = ["a"]\nmin-confidence = "low"\n')
    overrides = {"torch": "2.6", "extend_exclude": ("b",)}
    merged = Configuration(overrides, Selection(("AMP201",))).for_folder(here)
    assert (merged.torch, merged.min_confidence) == ("2.6", Confidence.LOW)
    assert merged.extend_exclude == ("a", "b")
    assert merged.layers[-1].select == ("AMP201",)


def test_a_broken_pyproject_of_somebody_else_is_no_concern(here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.other\n")
    assert Configuration().for_folder(here).source is None
    (here / "pyproject.toml").write_text("[tool.amplint\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        Configuration().for_folder(here)


def test_a_table_that_is_no_table_is_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"tool\.amplint must be a table"):
        settings("[tool]\namplint = 1\n", here, "pyproject.toml")


def test_settings_of_a_table_are_empty_by_default(tmp_path: Path) -> None:
    assert settings_from({}, tmp_path, None).layers == ()


@pytest.mark.usefixtures("fake_analysis")
def test_per_file_ignores_and_thresholds_act_on_findings(here: Path, amplint: Amplint) -> None:
    for name in ("a.py", "tests/b.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(CLIPPED)
    (here / "guess.py").write_text(CLIPPED.replace(", 1.0)", ", 1.0, guess=1)"))
    (here / "amplint.toml").write_text('per-file-ignores = {"tests/*" = ["AMP201"]}\n')
    paths = [f["path"] for f in amplint("--output-format", "json", ".").json["findings"]]
    assert paths == ["a.py"]
    run = amplint("--output-format", "json", "--min-confidence", "low", ".").json
    assert [f["path"] for f in run["findings"]] == ["a.py", "guess.py"]
    assert amplint("--ignore", "AMP201", ".").status == 0
    assert amplint("--select", "AMP101,AMP103", ".").status == 0
    assert amplint("--isolated", "--output-format", "concise", ".").out.count("AMP201") == 2


def test_mistakes_end_with_status_2_and_no_traceback(here: Path, amplint: Amplint) -> None:
    (here / "amplint.toml").write_text("selct = []\n")
    result = amplint(".")
    assert result.status == 2
    assert "did you mean 'select'?" in result.err
    assert "Traceback" not in result.err


# -- showing -----------------------------------------------------------------------------------------


def test_settings_that_are_shown_can_be_used_again(here: Path, amplint: Amplint) -> None:
    (here / "amplint.toml").write_text(
        """
        select = ["AMP2", "AMP601"]
        ignore = ["AMP203"]
        per-file-ignores = {"tests/*" = ["AMP201"], "odd \\"name\\"" = ["AMP1"]}
        torch = "2.4"
        min-confidence = "low"
        """
    )
    result = amplint("check", "--show-settings", "--ignore", "AMP201", "--min-severity", "info", ".")
    assert result.status == 0, result.err
    assert f"# .: from {here / 'amplint.toml'}\n" in result.out
    (here / "again").mkdir()
    shown = settings(result.out, here / "again")
    said = read_config(here / "amplint.toml")
    assert {rule.code for rule in shown.enabled_rules()} >= {"AMP202", "AMP601"}
    assert "AMP201" not in {rule.code for rule in shown.enabled_rules()}
    assert (shown.per_file_ignores, shown.torch, shown.min_confidence) == (
        said.per_file_ignores,
        said.torch,
        said.min_confidence,
    )


def test_settings_are_shown_once_per_configuration_and_nothing_is_checked(here: Path, amplint: Amplint) -> None:
    for name in ("a", "b"):
        (here / name).mkdir()
        (here / name / "x.py").write_text(CLIPPED)
    (here / "b" / "amplint.toml").write_text('torch = "2.5"\n')
    result = amplint("--show-settings", "a", "a/x.py", "b")
    assert result.status == 0
    assert "# a, a/x.py: from no configuration file\n" in result.out
    assert f"# b: from {here / 'b' / 'amplint.toml'}\n" in result.out
    assert result.out.count("\nselect = ") == 2
    assert 'torch = "2.5"' in result.out


def test_only_the_command_line_leaves_the_sandbox_out(here: Path, amplint: Amplint) -> None:
    (here / "a.py").write_text("x = 1\n")
    assert amplint("verify", "--no-sandbox", "a.py").status == 0
    (here / "amplint.toml").write_text("no-sandbox = true\n")
    result = amplint("a.py")
    assert result.status == 2
    assert "unknown key 'no-sandbox'" in result.err
    assert Configuration({"no_sandbox": True}).for_folder(here.parent).no_sandbox
