"""An optimized copy of a configuration: what is changed, what is left, and that nothing else moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.diagnosis.finding import CallEdit, Finding, Fix, Gain, IntervalEdit, Level, ModelEdit, Severity
from gpuwatch.edits.config_file import load, scalars, with_value
from gpuwatch.edits.tuned_config import TunedConfig, Wish, tuned_config, wishes_of
from gpuwatch.edits.workspace import CannotEditError

CONFIGS = Path(__file__).parent / "configs"
WORKERS = Wish("num_workers", "workers-too-few", "the workers cannot keep up", value="8")
TOML = """\
# mine
title = 'a # b'
[data]
num_workers = 0 # slow
batch_size = 32
[data.val]
num_workers = 0
[train]
save_steps = 50
text = \"\"\"
num_workers = 3
\"\"\"
"""


def tuned(text: str, *wishes: Wish, path: str = "t.yaml", **more: Any) -> TunedConfig:
    return tuned_config(path, text, wishes, **more)


def finding(rule: str, *edits: Any, **more: Any) -> Finding:
    fix = Fix("change it", edit=edits[0] if edits else None, also=edits[1:])
    usual: dict[str, Any] = {"gain": Gain(1.5, 2.0), "fix": fix, "run": "9.7", "state": "firing", "since_ns": 0}
    return Finding(rule, Severity.WARNING, Level.E2, "It waits", (), **(usual | more))


class TestWhatIsChanged:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("num_workers: 2\n", "num_workers: 8  # gpuwatch workers-too-few: the workers cannot keep up\n"),
            (
                "a: &x {b: 1}\ndata:\n    workers: 2   # mine\nc: *x\n",
                "a: &x {b: 1}\ndata:\n    workers: 8   # mine  # gpuwatch workers-too-few: the workers cannot keep up\n"
                "c: *x\n",
            ),
            (
                "dataloader-num-workers: 2\r\nlr: 1\r\n",
                "dataloader-num-workers: 8  # gpuwatch workers-too-few: the workers cannot keep up\r\nlr: 1\r\n",
            ),
            ("{num_workers: 2, note: 'a\n  b'}\n", "{num_workers: 8, note: 'a\n  b'}\n"),
        ],
        ids=["flat", "nested with an alias elsewhere", "carriage returns", "a line that ends in a text"],
    )
    def test_a_value_in_yaml_and_a_comment_where_the_line_ends(self, before: str, after: str) -> None:
        found = tuned(before, WORKERS)
        assert found.text == after and len(found.changed) == 1
        assert "2 -> 8 (workers-too-few): the workers cannot keep up" in found.changed[0]

    def test_a_value_in_json_without_a_comment(self) -> None:
        text = '{"note": "\\"num_workers\\": 2,", "data": {"num_workers": 2, "lr": 1e-3}}'
        assert tuned(text, WORKERS, path="t.json").text == text.replace(
            '"data": {"num_workers": 2', '"data": {"num_workers": 8'
        )

    def test_a_value_in_toml(self) -> None:
        found = tuned(TOML, WORKERS, Wish("save", "checkpoint-stall", "it saves often", times=4), path="t.toml")
        assert "num_workers = 8 # slow  # gpuwatch workers-too-few" in found.text
        assert "save_steps = 200  # gpuwatch checkpoint-stall: it saves often" in found.text
        assert "[data.val]\nnum_workers = 0\n" in found.text and '"""\nnum_workers = 3\n"""' in found.text

    def test_only_the_loader_of_training_is_meant(self) -> None:
        found = tuned("train: {num_workers: 2}\nval: {num_workers: 1}\n", WORKERS)
        assert found.text.startswith("train: {num_workers: 8}") and "val: {num_workers: 1}" in found.text
        both = tuned("a: {num_workers: 2}\nb: {num_workers: 1}\n", WORKERS)
        assert not both.changed and "a.num_workers and b.num_workers may all be meant" in both.left[0]

    def test_what_the_run_does_not_have_is_set_elsewhere(self) -> None:
        wish = Wish("num_workers", "workers-too-few", "it waits", value="8", present="4")
        assert "num_workers is 2, but the run has 4: it is set elsewhere" in tuned("num_workers: 2\n", wish).left[0]
        assert tuned("num_workers: 4\n", wish).changed

    def test_what_is_so_already_stays(self) -> None:
        text = "num_workers: 8\npin_memory: yes\n"
        assert tuned(text, WORKERS) == TunedConfig(text, (), ())

    def test_a_word_of_unknown_meaning_is_left(self) -> None:
        found = tuned("pin_memory: fast\n", Wish("pin_memory", "pageable-transfer", "it copies", value="True"))
        assert not found.changed and "pin_memory is fast: what it means is not known" in found.left[0]

    @pytest.mark.parametrize("written", ["auto", "${data.workers}", "", "null", "-1", "[1, 2]", "'auto'"])
    def test_what_is_no_number_of_workers_is_left(self, written: str) -> None:
        text = f"num_workers: {written}\npin_memory: false\n"
        found = tuned(text, WORKERS)
        assert found.text == text and not any("set elsewhere" in sentence for sentence in found.left)

    @pytest.mark.parametrize("written", ["no", "off", "False", "false"])
    def test_a_switch_is_read_as_pyyaml_does(self, written: str) -> None:
        on = Wish("pin_memory", "pageable-transfer", "it copies", value="True", present="False")
        assert tuned(f"pin_memory: {written}\n", on).text.startswith("pin_memory: true  #")
        assert tuned("pin_memory: yes\n", on) == TunedConfig("pin_memory: yes\n", (), ())

    def test_quotes_stay(self) -> None:
        wish = Wish("num_workers", "workers-too-few", "it waits", value="8", present="2")
        assert tuned("num_workers: '2'\n", wish).text.startswith("num_workers: '8'  #")

    def test_an_anchor_that_nothing_repeats_stays_and_its_value_changes(self) -> None:
        assert tuned("num_workers: &n 2\n", WORKERS).text.startswith("num_workers: &n 8  #")

    @pytest.mark.filterwarnings("error")
    def test_an_anchor_of_a_name_used_before_is_another_one(self) -> None:
        text = "a: &n 2\nb: *n\nnum_workers: &n 2\n"
        assert tuned(text, WORKERS).text.startswith("a: &n 2\nb: *n\nnum_workers: &n 8  #")

    def test_the_value_is_what_another_change_made_of_it(self) -> None:
        text = "num_workers: 0\nprefetch_factor: 2\n"
        assert tuned(text, WORKERS).left == () and "refuses prefetch_factor 2" in tuned(text).left[0]

    def test_sections_of_json_count(self) -> None:
        text = '{"train": {"num_workers": 2}, "val": {"num_workers": 1}, "l": [{"x": {"workers": [3]}}]}'
        assert tuned(text, WORKERS, path="t.json").text == text.replace("2", "8")
        assert [each.keys for each in scalars("t.json", '{"a": [{"b": "c"}, 1], "d\\n": {"e": null}, "f": 2}')] == [
            ("a", "b"),
            ("d\n", "e"),
            ("f",),
        ]

    @pytest.mark.parametrize(
        "text", ["d = { note = 'x', num_workers = 2 }\n", "[[a]]\nnum_workers = 2\n", '[a."b.c"]\nnum_workers = 2\n']
    )
    def test_tables_of_toml(self, text: str) -> None:
        assert tuned(text, WORKERS, path="t.toml").text.startswith(text.rstrip().replace("2", "8"))

    def test_an_alias_that_other_keys_repeat_is_left(self) -> None:
        text = "num_workers: &n 2\nother: *n\n"
        found = tuned(text, WORKERS)
        assert found.text == text and "other keys repeat it" in found.left[0]
        merged = "base: &b {num_workers: 2}\na:\n  <<: *b\nb:\n  <<: *b\n"
        assert tuned(merged, WORKERS).text == merged


class TestWithoutARun:
    def test_more_workers_than_cores_are_too_many(self) -> None:
        found = tuned("num_workers: 28\n", cores=8)
        assert found.text.startswith("num_workers: 8  # gpuwatch too-many-workers: a process may use 8 cores here")
        assert tuned("num_workers: 8\n", cores=8).text == "num_workers: 8\n"

    def test_the_configurations_of_the_documents(self) -> None:
        text = (CONFIGS / "training_config.yaml").read_text()
        found = tuned(text, cores=8, sources={"engine.py": ENGINE})
        assert "  num_workers: 8  # gpuwatch too-many-workers" in found.text
        assert found.text.replace(found.text.splitlines()[4], "  num_workers: 28") == text, "nothing else moved"
        assert "train.amp is true, which never equals 'bf16' in engine.py:2" in found.left
        assert any("mentions compile_model" in sentence for sentence in found.left)
        light = (CONFIGS / "lightweight.yaml").read_text()
        assert tuned(light, cores=8).text == light
        assert "num_workers: 4  #" in tuned(light, cores=4).text

    @pytest.mark.parametrize(("name", "workers"), [("high_performance", 12), ("balanced", 8), ("lightweight", 6)])
    def test_of_the_second_document_only_the_workers_change_never_the_model(self, name: str, workers: int) -> None:
        text = (CONFIGS / f"{name}.yaml").read_text()
        assert tuned(text, cores=workers).text == text
        after = load("t.yaml", tuned(text, cores=4).text)
        assert after == load("t.yaml", text) | {"num_workers": 4}

    @pytest.mark.parametrize(
        ("text", "workers"),
        [
            ("train: {num_workers: 4}\nval: {num_workers: 28}\n", [4, 8]),
            ("a: {num_workers: 14}\nb: {num_workers: 28}\n", [8, 8]),
            ("server: {workers: 28}\nloader: {workers: 9}\n", [28, 8]),
        ],
        ids=["only one has too many", "both have", "a web server's"],
    )
    def test_each_loader_with_more_workers_than_cores_gets_fewer_and_none_more(
        self, text: str, workers: list[int]
    ) -> None:
        found = load("t.yaml", tuned(text, cores=8).text)
        assert [value for section in found.values() for value in section.values()] == workers

    def test_pinned_memory_without_a_gpu_is_named_and_stays(self) -> None:
        found = tuned("pin_memory: true\n", cores=8, has_gpu=False)
        assert found.text == "pin_memory: true\n" and "this machine has no GPU" in found.left[0]
        assert tuned("pin_memory: true\n", cores=8).left == ()

    def test_a_precision_of_unknown_meaning_is_named(self) -> None:
        assert "precision is medium: what it means is not known" in tuned("precision: medium\n").left[0]
        for known in ("bf16", "16-mixed", "32", "'no'", "null", "fp16", "true"):
            assert tuned(f"mixed_precision: {known}\n").left == ()

    def test_no_key_is_called_unread_where_not_all_sources_were_read(self) -> None:
        some = {"a.py": "config['pin_memory'], sample"}
        text = "amp: true\npin-memory: true\n"
        assert tuned(text, sources=some).left == ("no Python file here mentions amp: does the program read them?",)
        assert tuned(text, sources=some, are_all_sources=False).left == ()

    def test_what_a_loader_without_workers_refuses_is_named(self) -> None:
        found = tuned("num_workers: 0\nprefetch_factor: 4\npersistent_workers: true\n", cores=8)
        assert found.left == (
            "num_workers is 0, with which DataLoader refuses prefetch_factor 4 and persistent_workers true",
        )


ENGINE = """\
class Engine:
    use_amp = config['train'].get('amp', 'none') == 'bf16'
    size = config['train']['batch_size'], config['train']['channels_last'], config['train']['num_workers']
    more = config['train']['pin_memory'], config['train']['non_blocking']
"""


class TestWhatARunAsksFor:
    def test_settings_intervals_and_the_layout(self) -> None:
        wishes, advice = wishes_of(
            [
                finding("workers-zero", CallEdit("DataLoader", "t.py", 3, {"num_workers": "4"}, {"num_workers": "0"})),
                finding("eval-stall", IntervalEdit("t.py", 9, 5, "epoch", times=5, what="evaluate")),
                finding(
                    "channels-last-off", ModelEdit("t.py", 4, "{model} = {model}.to(memory_format=torch.channels_last)")
                ),
                finding("amp-off", None),
                finding("later", CallEdit("DataLoader", "t.py", 3, {"pin_memory": "True"}), behind="workers-zero"),
                finding("no-fix", fix=None),
            ]
        )
        assert [(wish.meaning, wish.value, wish.times, wish.present) for wish in wishes] == [
            ("num_workers", "4", None, "0"),
            ("evaluate", None, 5, None),
            ("channels_last", "True", None, None),
        ]
        assert wishes[0].why == "It waits (1.5-2.0x faster)"
        assert len(advice) == 1 and "amp-off" in advice[0]

    def test_the_first_wish_for_a_key_counts(self) -> None:
        later = Wish("num_workers", "data-starvation", "it waits", value="2")
        assert "num_workers: 8" in tuned("num_workers: 0\n", WORKERS, later).text


class TestBadInput:
    @pytest.mark.parametrize(
        ("path", "text", "why"),
        [
            ("t.yaml", "num_workers: 2\nnum_workers: 3\n", "has num_workers twice"),
            ("t.yaml", "a:\n\tnum_workers: 2\n", r"not YAML that can be parsed \(line 2\)"),
            ("t.yaml", "num_workers: 2\n---\na: 1\n", "several documents"),
            ("t.yaml", "? [[a]]\n: 1\n", "not YAML"),
            ("t.yaml", "num_workers: !env 2\n", "only its own program can read"),
            ("t.yaml", "", "no key that gpuwatch could change"),
            ("t.yaml", "- 1\n- 2\n", "no key that gpuwatch could change"),
            ("t.json", '{"num_workers": 1, "num_workers": 2}', "has num_workers twice"),
            ("t.json", '{"num_workers": 1', "not JSON"),
            ("t.toml", "num_workers = 1\nnum_workers = 2\n", "not TOML"),
            ("t.yaml", "num_workers: 2\n" + "# much\n" * 20_000, "too long"),
        ],
        ids=[
            "double",
            "tab",
            "documents",
            "list as a key",
            "tag",
            "empty",
            "no mapping",
            "double JSON",
            "cut JSON",
            "double TOML",
            "long",
        ],
    )
    def test_it_is_a_sentence(self, path: str, text: str, why: str) -> None:
        with pytest.raises(CannotEditError, match=why):
            tuned(text, WORKERS, path=path)


VALUES = st.one_of(st.integers(-5, 5), st.booleans(), st.none(), st.text("ab:#'\" \n\\{}[],&*é", max_size=6))
KEYS = st.sampled_from(["num_workers", "lr", "pin_memory", "note", "a", "é"])
TREES = st.recursive(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    lambda inner: st.dictionaries(KEYS, st.one_of(VALUES, inner, st.lists(inner, max_size=2)), max_size=4),
    max_leaves=12,
)


@given(tree=TREES, value=st.sampled_from(["7", "true", "null"]), which=st.integers(0, 50))
def test_one_value_changes_and_nothing_else(tree: dict[str, Any], value: str, which: int) -> None:
    from ruamel.yaml import YAML
    from ruamel.yaml.compat import StringIO

    stream = StringIO()
    YAML(typ="safe").dump(tree, stream)
    for path, text in (("t.yaml", stream.getvalue()), ("t.json", json.dumps(tree, indent=1))):
        try:
            found = scalars(path, text)
        except CannotEditError:  # ruamel.yaml writes {a: ':*'} so that it cannot read it
            continue
        if not found:
            continue
        at = found[which % len(found)]
        try:
            after = with_value(path, text, at, value, "why")
        except CannotEditError:
            continue
        assert len(after.splitlines()) == len(text.splitlines())
        changed = [one for one, other in zip(text.splitlines(), after.splitlines(), strict=True) if one != other]
        assert len(changed) <= 1
        assert load(path, text) == tree
        assert repr(load(path, after)) != repr(tree) or at.text == value


@given(tree=TREES, indent=st.sampled_from([2, 4]), end=st.sampled_from(["\n", "\r\n", "  # mine\n"]))
def test_a_file_that_nothing_is_wished_of_is_the_same(tree: dict[str, Any], indent: int, end: str) -> None:
    from ruamel.yaml import YAML
    from ruamel.yaml.compat import StringIO

    yaml, stream = YAML(), StringIO()
    yaml.indent = indent
    yaml.dump(tree, stream)
    for path, text in (("t.yaml", stream.getvalue().replace("\n", end)), ("t.json", json.dumps(tree, indent=indent))):
        try:
            found = tuned_config(path, text, [])
        except CannotEditError:
            continue
        assert found.text == text and not found.changed
