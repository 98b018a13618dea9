"""Score files: made without leakage, resumed, used to prune and by `rho`, refused elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import SMALL, small, train_inline, train_over_the_wire

from sbpipe.cli import build_parser
from sbpipe.commands import score as command
from sbpipe.config import Config, DataConfig, ViewConfig, resolve, warnings_of
from sbpipe.data import Batch, Data, Order, load_data, score_file
from sbpipe.data.prune import remaining
from sbpipe.data.score_file import ScoreFile, read_scores, write_scores
from sbpipe.data.split import count_examples
from sbpipe.errors import ConfigError, DataError
from sbpipe.models import build_model
from sbpipe.records import Floats, Ids, Lease, Selection
from sbpipe.studies.rating import Progress, make_scores
from sbpipe.studies.rating.ensembles import crossed, ensemble
from sbpipe.studies.rating.fit import along, fit
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.scores import ScoreTable
from sbpipe.trainer.stream.stream import Stream

CPU = torch.device("cpu")
TINY = {"data.examples": 96, "data.test_examples": 10, "model.options": {"width": 4}, "train.batch_size": 16}


def tiny(**changes: Any) -> Config:
    return resolve(TINY | {key.replace("__", "."): value for key, value in changes.items()})


def load(config: Config, seed: int = 0) -> Data:
    return load_data(config.data, config.view, seed=seed, device=CPU, batch_size=config.train.batch_size)


def make(kind: str, config: Config, out: Path, models: int, tell: list[int] | None = None) -> ScoreFile:
    heard: list[int] = [] if tell is None else tell

    def listen(progress: Progress) -> None:
        heard.append(progress.model)

    return make_scores(kind, config, out, models=models, epochs=1.5, tell=listen)


def scores_for(config: Config, path: Path, scores: Floats | None = None, kind: str = "el2n") -> Floats:
    """A score file for the data set of a config, of random numbers if none are given."""
    data = load(config)
    if scores is None:
        scores = np.random.default_rng(0).random(data.train.num_examples).astype(np.float32)
    write_scores(path, ScoreFile(kind, data.whole, scores))
    return scores


# --- the making -----------------------------------------------------------------------------------


def slowly_trained(config: Config, seed: int, epochs: float) -> torch.nn.Module:
    """What `fit` promises, by hand: SGD on whole batches of the line of epochs, up to the peak and down."""
    data = load(config, seed)
    model = build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=seed
    ).train()
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    order = Order(96, seed)
    line = [(int(example), epoch) for epoch in range(3) for example in order.ids(epoch, 0, 96)]
    steps = int(epochs * 96 / 16)
    for step in range(steps):
        done = step / steps
        optim.param_groups[0]["lr"] = 0.1 * (done / 0.15 if done < 0.15 else 1 - (done - 0.15) / 0.85)
        ids, of_epoch = (np.array(values) for values in zip(*line[16 * step : 16 * step + 16], strict=True))
        inputs, targets = data.train.batch(ids, of_epoch)
        optim.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optim.step()
    return model.eval()


def test_el2n_is_the_mean_distance_from_the_truth_over_models_trained_by_hand(tmp_path: Path) -> None:
    config = tiny(view__crop=2)
    file = make("el2n", config, tmp_path / "el2n.npz", 2)
    data = load(replace(config, view=replace(config.view, score="clean")))
    inputs, targets = data.score.batch(np.arange(96), 0)
    expected = np.zeros(96)
    for seed in file.made["seeds"]:
        logits = slowly_trained(config, seed, 1.5)(inputs).detach().double().numpy()
        for example, target in enumerate(targets.tolist()):
            chances = np.exp(logits[example]) / np.exp(logits[example]).sum()
            chances[target] -= 1.0
            expected[example] += np.sqrt((chances**2).sum()) / 2
    assert len(file.made["seeds"]) == 2
    assert np.allclose(file.scores, expected, atol=1e-3)
    assert np.array_equal(read_scores(tmp_path / "el2n.npz", key="x").scores, file.scores)


class Recorder:
    """A split that remembers whom it was asked for."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.asked: set[int] = set()

    def batch(self, example_ids: Ids, epochs: Ids) -> Batch:
        self.asked |= set(example_ids.tolist())
        return self.data.train.batch(example_ids, epochs)


def test_nobody_is_rated_by_a_model_that_has_seen_it() -> None:
    config = tiny()
    data = load(config)
    rated = np.zeros(96, int)
    for part in crossed(2, 96, seed=0):
        rated[part.rated_ids] += 1
        recorder = Recorder(data)
        given = data._replace(train=recorder)  # type: ignore[arg-type]
        fit(config, given, part.train_ids, CPU, seed=part.seed, epochs=1.0, tick=lambda: None)
        assert recorder.asked == set(part.train_ids.tolist())
        assert not recorder.asked & set(part.rated_ids.tolist())
    assert (rated == 2).all()


def test_irreducible_is_the_loss_under_the_model_of_the_other_half(tmp_path: Path) -> None:
    config = tiny()
    file = make("irreducible", config, tmp_path / "scores.npz", 1)
    for part in crossed(1, 96, seed=0):
        data = load(config, part.seed)
        model = fit(config, data, part.train_ids, CPU, seed=part.seed, epochs=1.5, tick=lambda: None).eval()
        for example in part.rated_ids[:10]:
            inputs, targets = data.train.batch(np.array([example]), 0)
            with torch.no_grad():
                chances = torch.softmax(model(inputs)[0].double(), 0)
            assert file.scores[example] == pytest.approx(-float(torch.log(chances[targets[0]])), abs=1e-3)


def test_models_of_neighbouring_seeds_share_nothing() -> None:
    seeds = [part.seed for seed in range(20) for plan in (ensemble, crossed) for part in plan(10, 8, seed)]
    assert len(set(seeds)) == len(seeds)


def test_batches_follow_the_line_of_epochs() -> None:
    order = Order(10, 3)
    ids, epochs = along(order, 8, 23)
    line = np.concatenate([order.ids(epoch, 0, 10) for epoch in range(3)])
    assert ids.tolist() == line[8:23].tolist()
    assert epochs.tolist() == [0] * 2 + [1] * 10 + [2] * 3


def test_a_stopped_command_goes_on_behind_the_models_that_are_done(tmp_path: Path) -> None:
    config, out = tiny(), tmp_path / "el2n.npz"

    def stop_in_the_second(progress: Progress) -> None:
        if progress.model == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_scores("el2n", config, out, models=2, epochs=1.5, tell=stop_in_the_second)
    assert [path.name for path in (tmp_path / "el2n.npz.parts").iterdir()] == ["model-0.npz"]
    assert not out.exists()
    trained: list[int] = []
    resumed = make("el2n", config, out, 2, trained)
    assert set(trained) == {2}
    whole = make("el2n", config, tmp_path / "whole.npz", 2)
    assert np.array_equal(resumed.scores, whole.scores)
    again: list[int] = []
    make("el2n", config, out, 2, again)
    assert again == []
    with pytest.raises(ConfigError, match=r"was made with optim\.lr = 0\.1, and here it is 0\.2"):
        make("el2n", tiny(optim__lr=0.2), out, 2)
    with pytest.raises(ConfigError, match="was made with kind = 'el2n', and here it is 'irreducible'"):
        make("irreducible", config, out, 2)


def test_the_command_takes_settings_in_any_order_and_says_where_the_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[data]\nexamples = 96\ntest_examples = 10\nprune = "out.npz"\nprune_share = 0.5\n')
    out = str(tmp_path / "out.npz")
    words = [
        "score",
        "el2n",
        "--out",
        out,
        "--models",
        "1",
        "--epochs",
        "0.5",
        "--set",
        "train.batch_size=16",
        str(config),
    ]
    assert command.run(build_parser().parse_args(words)) == 0
    said = capsys.readouterr().out
    assert "model 1 of 1  left" in said
    assert said.splitlines()[-1].startswith("el2n of 96 examples")
    assert said.rstrip().endswith(out)
    for flag, value in (("--models", "0"), ("--epochs", "-1")):
        with pytest.raises(ConfigError, match=flag):
            command.run(build_parser().parse_args([*words, flag, value]))
    with pytest.raises(ConfigError, match="do not fill a batch"):
        command.run(
            build_parser().parse_args(
                ["score", "irreducible", "--out", out + "2", str(config), "--set", "train.batch_size=49"]
            )
        )


# --- pruning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["low", "high"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.87])
def test_pruning_drops_exactly_the_lowest_and_of_equals_the_first(drop: str, share: float) -> None:
    scores = np.random.default_rng(1).integers(0, 12, 101).astype(np.float32)
    sign = 1 if drop == "low" else -1
    slowly = sorted(range(101), key=lambda example: (sign * scores[example], example))
    assert remaining(scores, share, drop).tolist() == sorted(slowly[int(share * 101 + 0.5) :])


def test_examples_of_a_pruned_data_set_look_as_in_the_whole(tmp_path: Path) -> None:
    config = tiny(view__crop=3, view__flip=True, view__score="clean")
    whole, scores = load(config), scores_for(config, tmp_path / "scores.npz")
    pruned = load(
        resolve(
            TINY
            | {"view.crop": 3, "view.flip": True, "view.score": "clean"}
            | prune(tmp_path / "scores.npz", 0.25)
        )
    )
    assert pruned.left is not None
    assert (pruned.train.num_examples, pruned.test.num_examples) == (72, 10)
    assert scores[pruned.left].min() >= np.sort(scores)[24]
    some = np.array([3, 70, 11])
    for of_pruned, of_whole in ((pruned.train, whole.train), (pruned.score, whole.score)):
        for mine, theirs in zip(of_pruned.batch(some, 2), of_whole.batch(pruned.left[some], 2), strict=True):
            assert torch.equal(mine, theirs)
    assert np.array_equal(pruned.train.targets_of(some), whole.train.targets_of(pruned.left[some]))
    with pytest.raises(IndexError, match="0 to 71"):
        pruned.train.batch(np.array([72]), 0)


def prune(path: Path, share: float, **changes: object) -> dict[str, Any]:
    return {"data.prune": str(path), "data.prune_share": share} | changes


def test_loaded_and_own_data_is_pruned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.savez(
        tmp_path / "data.npz",
        x_train=inputs,
        y_train=np.arange(20) % 2,
        x_test=inputs[:2],
        y_test=np.array([0, 1]),
    )
    (tmp_path / "of_mine.py").write_text(
        "import numpy as np\nx = np.random.default_rng(0).normal(size=(20, 4)).astype('float32')\n"
        "class Mine:\n    num_classes = 2\n    def __len__(self): return 20\n    def __getitem__(self, i): "
        "return x[i], i % 2\n"
        "def data(): return Mine(), Mine()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, path in (("arrays", str(tmp_path / "data.npz")), ("of_mine:data", "")):
        own = DataConfig(name=name, path=path, workers=0)
        whole = load_data(own, ViewConfig(), seed=0, device=CPU)
        write_scores(tmp_path / "scores.npz", ScoreFile("mine", whole.whole, np.arange(20, dtype=np.float32)))
        pruned = replace(own, prune=str(tmp_path / "scores.npz"), prune_share=0.75)
        batch = load_data(pruned, ViewConfig(), seed=0, device=CPU).train.batch(np.arange(5), 0)
        assert np.array_equal(batch.inputs.numpy(), inputs[15:])


def test_a_budget_in_epochs_counts_what_a_run_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores_for(tiny(), tmp_path / "scores.npz")
    pruned = resolve(TINY | prune(tmp_path / "scores.npz", 0.31))
    assert count_examples(pruned.data) == load(pruned).train.num_examples < count_examples(tiny().data)
    (tmp_path / "of_trees.py").write_text("def data(): return [1, 2, 3], [4], list\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert count_examples(DataConfig(name="of_trees:data")) == 3


def test_the_fingerprint_of_a_pruned_data_set_says_who_is_left(tmp_path: Path) -> None:
    scores_for(tiny(), tmp_path / "scores.npz")
    whole = load(tiny())
    found = [
        load(resolve(TINY | prune(tmp_path / "scores.npz", share))) for share in (0.0, 0.3, 0.3, 0.31, 0.5)
    ]
    assert found[0].fingerprint == whole.fingerprint == whole.whole
    assert found[1].fingerprint == found[2].fingerprint
    assert len({data.fingerprint for data in found}) == 4
    assert {data.whole for data in found} == {whole.whole}


def test_a_pruned_lockstep_run_by_rho_equals_one_process_bit_for_bit(tmp_path: Path) -> None:
    scores_for(small(), tmp_path / "el2n.npz")
    scores_for(small(), tmp_path / "irreducible.npz", np.linspace(0, 3, 600, dtype=np.float32), "irreducible")
    changes: dict[str, Any] = {
        "data__prune": str(tmp_path / "el2n.npz"),
        "data__prune_share": 0.4,
        "selection__policy": "rho",
    }
    changes |= {
        "selection__irreducible": str(tmp_path / "irreducible.npz"),
        "train__steps": 0,
        "train__epochs": 2.0,
    }
    inline = train_inline(small(mode="inline", **changes), tmp_path / "inline")
    wire = train_over_the_wire(small(mode="lockstep", **changes), tmp_path / "wire")
    assert wire["weights.digest"] == inline["weights.digest"]
    assert wire["candidates"] == inline["candidates"] == 720


# --- rho ------------------------------------------------------------------------------------------


def test_rho_passes_over_whom_nobody_learns_whatever_its_loss(tmp_path: Path) -> None:
    hopeless = np.random.default_rng(2).permutation(600)[:120]
    irreducible = np.zeros(600, np.float32)
    irreducible[hopeless] = 100.0
    scores_for(small(), tmp_path / "irreducible.npz", irreducible, "irreducible")
    changes: dict[str, Any] = {
        "selection__policy": "rho",
        "selection__irreducible": str(tmp_path / "irreducible.npz"),
    }
    train_inline(small(mode="inline", selector__batch_size=64, **changes), tmp_path / "run")
    with np.load(tmp_path / "run" / "examples.npz") as examples:
        seen, kept, scores = examples["times_considered"], examples["times_kept"], examples["score"]
    assert seen[hopeless].sum() > 50
    assert kept[hopeless].sum() == 0
    assert kept.sum() > 100
    assert np.nanmin(scores) > 0.0  # what travels are losses


def test_without_a_selector_rho_still_chooses_by_the_difference() -> None:
    config = resolve({"selection.policy": "rho", "selection.irreducible": "any", "selection.keep": 0.25})
    generator = np.random.default_rng(3)
    losses, irreducible = (generator.gamma(1.0, size=40).astype(np.float32) for _ in range(2))
    table, order = ScoreTable(40, 16, irreducible=irreducible), Order(40, 0)
    table.record(np.arange(40), Selection(0, 0, losses, np.empty(0, np.int32), np.zeros(40, np.float32)))
    lease = Lease(1, 0, 0, 40, enough=40, most=40, version=0, keep=0.25)
    selection, _ = Fallback(config, order, table).answer(lease, 0)
    kept = set(order.ids(0, 0, 40)[selection.kept].tolist())
    slowly = sorted(range(40), key=lambda example: float(losses[example]) - float(irreducible[example]))[-10:]
    assert kept == set(slowly)
    assert kept != set(np.argsort(losses)[-10:].tolist())


# --- what is refused ------------------------------------------------------------------------------


def test_a_file_that_does_not_belong_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "scores.npz"
    pruned = resolve(TINY | prune(path, 0.5))
    with pytest.raises(
        ConfigError, match=r"data\.prune = .*there is no such file\. Make one with `sbpipe score el2n"
    ):
        load(pruned)
    path.write_text("not a file of scores")
    with pytest.raises(ConfigError, match="is not a score file, or not a whole one"):
        load(pruned)
    np.savez(path, scores=np.zeros(96, np.float32))
    with pytest.raises(ConfigError, match="is not a score file"):
        load(pruned)
    other = load(tiny(data__seed=1)).whole
    write_scores(path, ScoreFile("el2n", other, np.zeros(96, np.float32)))
    with pytest.raises(
        ConfigError,
        match=f"another data set: the file's fingerprint is {other}, this data set's {load(tiny()).whole}",
    ):
        load(pruned)
    scores_for(tiny(), path, np.zeros(95, np.float32))
    with pytest.raises(ConfigError, match="holds 95 scores, the data set has 96 training examples"):
        load(pruned)
    scores_for(tiny(), path)
    with pytest.raises(
        DataError, match=r"data\.prune_share = 0\.9: leaves 10 of 96 training examples.*batch of 16"
    ):
        load(resolve(TINY | prune(path, 0.9)))
    with pytest.raises(ConfigError, match=r"selection\.irreducible = .*of kind 'el2n', not 'irreducible'"):
        load(tiny()).scores_in(str(path), key="selection.irreducible", kind="irreducible")


def test_scores_that_are_no_numbers_are_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = np.array([0.0, np.nan, 1.0], np.float32)
    with pytest.raises(ValueError, match="example 1 is nan"):
        write_scores(tmp_path / "scores.npz", ScoreFile("el2n", "f", scores))
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(score_file, "_first_not_finite", lambda scores: None)
        write_scores(tmp_path / "scores.npz", ScoreFile("el2n", "f", scores))
    with pytest.raises(ConfigError, match="the score of example 1 is nan, and 1 of 3 are not finite"):
        read_scores(tmp_path / "scores.npz", key="data.prune")


def test_what_a_new_selector_takes_over_for_rho_are_differences() -> None:
    losses, irreducible = np.array([3.0, 1.0, 2.0], np.float32), np.array([0.5, 0.25, 2.5], np.float32)
    stream = Stream(
        resolve({"selection.policy": "rho", "selection.irreducible": "any"}), 3, irreducible=irreducible
    )
    stream.table.record(
        np.array([2, 0, 1]), Selection(0, 0, losses, np.empty(0, np.int32), np.zeros(3, np.float32))
    )
    assert stream.table.history[0].tolist() == [0.5, 0.5, 1.75]
    assert stream.table.recent.tolist() == [3.0, 1.0, 2.0], "what is recorded stays the loss"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"data.prune_share": 0.3}, "no score file to tell which"),
        ({"selection.policy": "rho"}, "needs a file of irreducible losses"),
        (
            {"selection.policy": "rho", "selection.irreducible": "x", "selection.score": "gradient"},
            "subtracts losses from losses",
        ),
        (
            {"selection.policy": "rho", "selection.irreducible": "x", "selection.unbiased": 5.0},
            "no chance at all",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve(given)


def test_a_file_that_is_not_used_is_warned_of() -> None:
    notes = warnings_of(resolve(SMALL | {"data.prune": "x", "selection.irreducible": "y"}))
    assert any("data.prune has no effect" in note for note in notes)
    assert any("selection.irreducible has no effect" in note for note in notes)
