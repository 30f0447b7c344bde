"""A keyword whose value is a name is changed where the name gets its value, or the reason is told."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.unit.edit_sources import changed, loader_edit, refused

ARGPARSE = dedent("""\
    import argparse
    from torch.utils.data import DataLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", "--workers", default=4, type=int, metavar="N", help="loading workers")
    parser.add_argument("--work-dir", default="runs")
    parser.add_argument("--config")
    def main():
        args = parser.parse_args()
        loader = DataLoader(dataset, num_workers=args.workers)
    """)


def of(source: str, workers: str = "6", present: str | None = None, **others: str):
    return loader_edit(source, {} if present is None else {"num_workers": present}, num_workers=workers, **others)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (
            "NUM_WORKERS = 2  # cores\nloader = DataLoader(x, num_workers=NUM_WORKERS)\n",
            ["-NUM_WORKERS = 2  # cores", "+NUM_WORKERS = 6  # cores"],
        ),
        (
            "def main():\n    workers: int = 2\n    return DataLoader(x, num_workers=workers)\n",
            ["-    workers: int = 2", "+    workers: int = 6"],
        ),
        (
            "A = 2\nB = A\nloader = DataLoader(x, num_workers=B)\n",
            ["-A = 2", "+A = 6"],
        ),
        (
            "def loaders(workers=2):\n    return DataLoader(x, num_workers=workers)\nloaders()\n",
            ["-def loaders(workers=2):", "+def loaders(workers=6):"],
        ),
        (
            "def loaders(data, *, workers):\n    return DataLoader(data, num_workers=workers)\nloaders(x, workers=2)\n",
            ["-loaders(x, workers=2)", "+loaders(x, workers=6)"],
        ),
        (
            "def loaders(data, workers):\n    return DataLoader(data, num_workers=workers)\nN = 2\nloaders(x, N)\n",
            ["-N = 2", "+N = 6"],
        ),
        (
            "@dataclass\nclass Config:\n    workers: int = 2\nc = Config()\nDataLoader(x, num_workers=c.workers)\n",
            ["-    workers: int = 2", "+    workers: int = 6"],
        ),
        (
            "class C:\n    workers: int = 2\nc = C(workers=3)\nDataLoader(x, num_workers=c.workers)\n",
            ["-c = C(workers=3)", "+c = C(workers=6)"],
        ),
        (
            "class C:\n    workers: int = field(default=2, metadata={})\nDataLoader(x, num_workers=C().workers)\n",
            ["-    workers: int = field(default=2, metadata={})", "+    workers: int = field(default=6, metadata={})"],
        ),
        (
            "cfg = {'data': {'workers': 2}}\nDataLoader(x, num_workers=cfg['data']['workers'])\n",
            ["-cfg = {'data': {'workers': 2}}", "+cfg = {'data': {'workers': 6}}"],
        ),
        (
            "cfg = SimpleNamespace(lr=1, workers=2)\nDataLoader(x, num_workers=cfg.workers)\n",
            ["-cfg = SimpleNamespace(lr=1, workers=2)", "+cfg = SimpleNamespace(lr=1, workers=6)"],
        ),
        (
            "class M:\n    def __init__(self, workers=2):\n        self.workers = workers\n"
            "    def train_dataloader(self):\n        return DataLoader(x, num_workers=self.workers)\nM()\n",
            ["-    def __init__(self, workers=2):", "+    def __init__(self, workers=6):"],
        ),
        (
            "class M:\n    def __init__(self, workers):\n        self.workers = workers\n"
            "    def train_dataloader(self):\n        return DataLoader(x, num_workers=self.workers)\nM(workers=2)\n",
            ["-M(workers=2)", "+M(workers=6)"],
        ),
        (
            "class M(LightningModule):\n    def __init__(self, lr=1, workers=2):\n        self.save_hyperparameters()\n"
            "    def train_dataloader(self):\n        return DataLoader(x, num_workers=self.hparams.workers)\n",
            ["-    def __init__(self, lr=1, workers=2):", "+    def __init__(self, lr=1, workers=6):"],
        ),
        (
            "@click.command()\n@click.option('--lr', default=1)\n@click.option('-j', '--num-workers', default=2)\n"
            "def main(lr, num_workers):\n    DataLoader(x, num_workers=num_workers)\n",
            ["-@click.option('-j', '--num-workers', default=2)", "+@click.option('-j', '--num-workers', default=6)"],
        ),
        (
            "@app.command()\ndef main(workers: int = typer.Option(2, '--workers')):\n"
            "    DataLoader(x, num_workers=workers)\n",
            [
                "-def main(workers: int = typer.Option(2, '--workers')):",
                "+def main(workers: int = typer.Option(6, '--workers')):",
            ],
        ),
        (
            "def main(workers: int = 2):\n    DataLoader(x, num_workers=workers)\ntyper.run(main)\n",
            ["-def main(workers: int = 2):", "+def main(workers: int = 6):"],
        ),
    ],
)
def test_the_place_where_the_value_is_written_is_changed(source: str, lines: list[str]) -> None:
    assert changed(of(source), source) == lines


def test_the_default_of_an_option_is_changed_and_its_short_name_knows_it() -> None:
    assert changed(of(ARGPARSE), ARGPARSE, ["python", "train.py", "--work-dir", "x"]) == [
        '-parser.add_argument("-j", "--workers", default=4, type=int, metavar="N", help="loading workers")',
        '+parser.add_argument("-j", "--workers", default=6, type=int, metavar="N", help="loading workers")',
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "2"], "started with --workers 2: start it with --workers 6"),
        (["--workers=2"], "started with --workers=2: start it with --workers=6"),
        (["-j", "2"], "started with -j 2: start it with -j 6"),
        (["-j2"], "started with -j2: start it with -j 6"),
        (["--worker", "2"], "started with --worker 2: start it with --worker 6"),
    ],
)
def test_a_setting_of_the_command_line_is_to_be_given_there(arguments: list[str], said: str) -> None:
    assert said in refused(of(ARGPARSE), ARGPARSE, ["python", "train.py", *arguments])


def test_a_nested_option_of_the_command_line_is_reported() -> None:
    source = "C.trainer.num_workers = 4\nDataLoader(x, num_workers=C.num_workers)\n"
    reason = refused(of(source), source, ["python", "t.py", "--trainer.num_workers=2"])
    assert "start it with --trainer.num_workers=6" in reason


def test_a_hydra_override_of_the_command_line_is_reported() -> None:
    source = "def main(cfg):\n    DataLoader(x, num_workers=cfg.data.workers)\n"
    assert "workers=6" in refused(
        of(source), source, ["python", "train.py", "data.workers=2", "base.yaml"], base_yaml="data: {workers: 4}\n"
    )


def test_settings_that_need_workers_hold_for_any_number_of_them() -> None:
    edit = of(ARGPARSE, persistent_workers="True", prefetch_factor="4")
    assert changed(edit, ARGPARSE)[-1] == (
        "+    loader = DataLoader(dataset, num_workers=args.workers, persistent_workers=args.workers > 0, "
        "prefetch_factor=4 if args.workers > 0 else None)"
    )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("N = 2\nN = 3\nDataLoader(x, num_workers=N)\n", "set in lines 1, 2"),
        ("N = 2\nif debug:\n    N = 0\nDataLoader(x, num_workers=N)\n", "set in lines 1, 3"),
        ("N = os.cpu_count()\nDataLoader(x, num_workers=N)\n", "computed in line 1"),
        ("N, M = 2, 3\nDataLoader(x, num_workers=N)\n", "computed in line 1"),
        ("for N in (1, 2):\n    DataLoader(x, num_workers=N)\n", "computed in line 1"),
        ("from config import N\nDataLoader(x, num_workers=N)\n", "imported from config"),
        ("DataLoader(x, num_workers=N)\n", "not set in"),
        ("N = 2\ndef f():\n    global N\n    N = 3\nDataLoader(x, num_workers=N)\n", "global"),
        ("make = lambda n: DataLoader(x, num_workers=n)\n", "lambda's parameter"),
        ("def f(n):\n    DataLoader(x, num_workers=n)\n", "callers of f() give"),
        ("def f(n=2):\n    DataLoader(x, num_workers=n)\n", "callers of f() give"),
        ("def f(n):\n    DataLoader(x, num_workers=n)\nf(1)\nf(2)\n", "give differently"),
        ("def f(n=1):\n    DataLoader(x, num_workers=n)\nf()\nf(2)\n", "give differently"),
        ("def f(n=1):\n    DataLoader(x, num_workers=n)\nf(**options)\n", "by * or **"),
        ("def f(args):\n    DataLoader(x, num_workers=args.workers)\n", "not set in"),
        ("A = B\nB = A\nDataLoader(x, num_workers=A)\n", "too many names"),
        ("N = '2'\nDataLoader(x, num_workers=N)\n", "computed"),
        ("a.n = 2\nb.n = 3\nDataLoader(x, num_workers=a.n)\n", "set in lines 1, 2"),
        ("class M:\n    def f(self):\n        DataLoader(x, num_workers=self.n)\n", "not set in its class"),
        ("DataLoader(x, num_workers=settings[index])\n", "not a plain name"),
        ("p.add_argument('--n', type=int)\nDataLoader(x, num_workers=args.n)\n", "no default: start it with --n 6"),
        (
            "p.add_argument('--n', default=2)\nq.add_argument('--n', default=2)\nDataLoader(x, num_workers=args.n)\n",
            "set in lines 1, 2",
        ),
        ("p.add_argument('--n', default=2)\nargs.n = 4\nDataLoader(x, num_workers=args.n)\n", "set in lines 1, 2"),
    ],
)
def test_what_is_ambiguous_is_reported(source: str, why: str) -> None:
    assert why in refused(of(source), source)


def test_a_switch_is_reported() -> None:
    source = "p.add_argument('--pin', action='store_true')\nDataLoader(x, pin_memory=args.pin)\n"
    assert "start it with --pin" in refused(loader_edit(source, pin_memory="True"), source)


def test_a_default_that_the_run_does_not_have_is_not_where_its_value_comes_from() -> None:
    source = "N = 4\nDataLoader(x, num_workers=N)\n"
    assert "but the run has 2" in refused(of(source, present="2"), source)
    assert changed(of(source, present="4"), source) == ["-N = 4", "+N = 6"]


def test_a_followed_value_that_is_right_already_is_said() -> None:
    assert "already" in refused(of(ARGPARSE, "4"), ARGPARSE)


def test_the_other_keywords_are_reported_with_the_reason() -> None:
    reason = refused(of(ARGPARSE, persistent_workers="True"), ARGPARSE, ["python", "t.py", "--workers", "0"])
    assert "start it with --workers 6" in reason
    assert "persistent_workers=True" in reason


KWARGS = dedent("""\
    train_kwargs = {'batch_size': args.batch_size}
    if use_cuda:
        cuda_kwargs = {'num_workers': 1,
                       'pin_memory': True,
                       'shuffle': True}
        train_kwargs.update(cuda_kwargs)
    train_loader = torch.utils.data.DataLoader(dataset1,**train_kwargs)
    """)


def test_keywords_from_a_dictionary_are_set_in_it() -> None:
    edit = loader_edit(KWARGS, {"num_workers": "1"}, num_workers="6", pin_memory="True", persistent_workers="True")
    assert changed(edit, KWARGS) == [
        "-    cuda_kwargs = {'num_workers': 1,",
        "+    cuda_kwargs = {'num_workers': 6,",
        "-                   'shuffle': True}",
        "+                   'shuffle': True,",
        "+                   'persistent_workers': True}",
    ]
    two = loader_edit(KWARGS, num_workers="6", persistent_workers="True", prefetch_factor="4")
    assert changed(two, KWARGS)[-2:] == [
        "+                   'persistent_workers': True,",
        "+                   'prefetch_factor': 4}",
    ]


@pytest.mark.parametrize("workers", ["1", "6"])
def test_keywords_of_a_branch_that_the_run_did_not_take_are_left_alone(workers: str) -> None:
    on_cpu = loader_edit(KWARGS, {"num_workers": "0"}, num_workers=workers, persistent_workers="True")
    assert changed(on_cpu, KWARGS) == [
        "-train_kwargs = {'batch_size': args.batch_size}",
        f"+train_kwargs = {{'batch_size': args.batch_size, 'num_workers': {workers}, 'persistent_workers': True}}",
    ]


def test_an_update_that_is_sure_to_happen_must_say_what_the_run_has() -> None:
    source = "k = {'shuffle': True}\nk.update({'num_workers': 1})\nDataLoader(x, **k)\n"
    assert "but the run has 0" in refused(of(source, present="0"), source)


def test_settings_that_need_workers_stand_where_the_number_can_be_read() -> None:
    source = "N = 0\nk = {'num_workers': N}\nDataLoader(x, **k)\n"
    assert changed(of(source, persistent_workers="True"), source)[-1] == (
        "+k = {'num_workers': N, 'persistent_workers': N > 0}"
    )
    source = "k = {'shuffle': True}\nN = 0\nDataLoader(x, num_workers=N, **k)\n"
    assert changed(of(source, persistent_workers="True"), source)[-1] == (
        "+DataLoader(x, num_workers=N, **k, persistent_workers=N > 0)"
    )


@pytest.mark.parametrize(
    ("dictionary", "after"),
    [
        ("{}", ['+k = {"num_workers": 6}']),
        ("{'a': 1}", ["+k = {'a': 1, 'num_workers': 6}"]),
        ('{\n    "a": 1,  # one\n}', ['+    "num_workers": 6,']),
        ('{\n    "a": 1  # one\n}', ['+    "a": 1,  # one', '+    "num_workers": 6']),
    ],
)
def test_a_dictionary_gets_a_key_in_its_own_style(dictionary: str, after: list[str]) -> None:
    source = f"k = {dictionary}\nloader = DataLoader(x, **k)\n"
    assert [line for line in changed(of(source), source) if line.startswith("+")] == after


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("k = f()\nDataLoader(x, **k)\n", "not one dictionary"),
        ("k = {}\nk = {}\nDataLoader(x, **k)\n", "not one dictionary"),
        ("k = {}\nk['num_workers'] = 3\nDataLoader(x, **k)\n", "one by one"),
        ("k = {**a}\nDataLoader(x, **k)\n", "takes items from **"),
        ("k = {'num_workers': 1}\nk.update({'num_workers': 2})\nDataLoader(x, **k)\n", "2 dictionaries"),
        ("DataLoader(x, **vars(args))\n", "takes arguments from vars(args)"),
    ],
)
def test_a_dictionary_made_elsewhere_is_reported(source: str, why: str) -> None:
    assert why in refused(of(source), source)


CONFIGURED = "def main(cfg):\n    loader = DataLoader(x, num_workers=cfg.data.workers)\n"
YAML = """\
# settings of the paper
data:   {workers: 2,  batch: 32}
model:
    name: "resnet"   # quoted
    layers: [1, 2]
"""


def test_yaml_of_the_command_line_keeps_all_but_the_value() -> None:
    for command in (["python", "train.py", "base.yaml"], ["python", "train.py", "--config=base.yaml"]):
        assert changed(of(CONFIGURED, present="2"), CONFIGURED, command, base_yaml=YAML) == [
            "-data:   {workers: 2,  batch: 32}",
            "+data:   {workers: 6,  batch: 32}",
        ]


def test_json_of_the_command_line_keeps_all_but_the_value() -> None:
    text = '{"lr" : 1e-3,\n\t"data": { "workers" :2, "note": "\\"workers\\": 3" } }'
    assert changed(of(CONFIGURED, present="2"), CONFIGURED, ["python", "t.py", "a.json"], a_json=text)[:2] == [
        '-\t"data": { "workers" :2, "note": "\\"workers\\": 3" } }',
        '+\t"data": { "workers" :6, "note": "\\"workers\\": 3" } }',
    ]


def test_the_config_file_is_changed_where_it_overrules_a_default() -> None:
    command = ["python", "train.py", "--config", "base.yaml"]
    assert changed(of(ARGPARSE, present="2"), ARGPARSE, command, base_yaml="workers: 2\n") == [
        "-workers: 2",
        "+workers: 6",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("train: {workers: 2}\ntest: {workers: 2}\n", "2 keys"),
        ("train: {workers: 3}\n", "no key of base.yaml"),
        ("train: {workers: [2}\n", "not YAML"),
        ("workers: &n 2\nother: *n\n", "cannot be changed by itself"),
        ("workers: 6\n", "already"),
        ("lr: 1\n", "not set in"),
    ],
)
def test_a_config_that_is_not_plain_is_reported(text: str, why: str) -> None:
    reason = refused(of(CONFIGURED, present="2"), CONFIGURED, ["python", "t.py", "base.yaml"], base_yaml=text)
    assert why in reason


def test_json_that_does_not_parse_is_reported() -> None:
    assert "not JSON" in refused(of(CONFIGURED), CONFIGURED, ["python", "t.py", "a.json"], a_json='{"workers": 2,}')


def test_a_config_file_that_cannot_be_read_is_reported() -> None:
    assert "cannot be read" in refused(of(CONFIGURED), CONFIGURED, ["python", "t.py", "gone.yaml"])
