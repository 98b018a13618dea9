"""Batches of any make: a tree from the user's own collate function, the same in every process."""

import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.own_loops import vectors
from torch.utils.data import Dataset, default_collate

from sbpipe.data.own_batches import OwnBatches, OwnData, PartedBatches
from sbpipe.data.trees import joined, moved, packed, unpacked
from sbpipe.errors import DataError
from sbpipe.machine.copies import Uploads

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "inputs targets")


class Ragged(Dataset[dict[str, Any]]):
    """Words of any number, some of them replaced at random."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> dict[str, Any]:
        words = [place + 1] * (1 + place % 7)
        if random.random() < 0.5:
            words[0] = int(torch.randint(100, 200, ()))
        return {"words": words, "target": float(np.random.random()), "name": f"example {place}"}


def pad(items: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(len(item["words"]) for item in items)
    rows = [item["words"] + [0] * (longest - len(item["words"])) for item in items]
    return {
        "inputs": {"words": torch.tensor(rows), "noise": torch.rand(2)},
        "targets": (torch.tensor([item["target"] for item in items]),),
        "names": [item["name"] for item in items],
    }


@dataclass
class Boxes:
    corners: torch.Tensor
    label: str


def batch_of(ids: list[int], *, workers: int = 1, epoch: int = 0, seed: int = 0, **data: Any) -> Any:
    batches = OwnBatches(
        OwnData(data.get("dataset", Ragged()), data.get("collate", pad), workers), seed=seed, device=CPU
    )
    try:
        return batches.batch(np.array(ids), epoch)[0].tree
    finally:
        batches.close()


def equal(one: Any, other: Any) -> bool:
    first, second = packed(one), packed(other)
    return len(first.tensors) == len(second.tensors) and all(
        torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True)
    )


def test_a_batch_is_what_the_users_collate_function_makes_of_its_examples() -> None:
    batch = batch_of([3, 9, 6])
    assert batch["inputs"]["words"].shape == (3, 7)
    assert batch["names"] == ["example 3", "example 9", "example 6"]
    assert isinstance(batch["targets"], tuple)


def test_a_batch_is_the_same_however_many_workers_make_it() -> None:
    whole = batch_of([5, 1, 8, 20, 33])
    assert equal(whole, batch_of([5, 1, 8, 20, 33], workers=3))
    assert not equal(whole, batch_of([5, 1, 8, 20, 33], epoch=1))
    assert not equal(whole, batch_of([5, 1, 8, 20, 33], seed=1))


def test_an_example_looks_the_same_in_every_batch_of_an_epoch() -> None:
    alone, among = batch_of([4]), batch_of([2, 4, 30])
    assert among["inputs"]["words"][1, :5].tolist() == alone["inputs"]["words"][0].tolist()
    assert among["targets"][0][1] == alone["targets"][0][0]


def test_loading_leaves_the_generators_of_the_users_process_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    batch_of([1, 2, 3], workers=2)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_torchs_own_collate_function_gives_the_same_batch_in_pieces() -> None:
    examples = [{"x": torch.arange(3) + k, "pair": (k, f"word {k}")} for k in range(7)]
    whole = default_collate(examples)
    cuts = (examples[:3], examples[3:5], examples[5:])
    pieces = joined([default_collate(part) for part in cuts])
    assert equal(whole, pieces)
    assert whole["pair"][1] == pieces["pair"][1]


def test_rows_of_tensors_need_no_process() -> None:
    data = vectors(64)
    batches = OwnBatches(OwnData(data, default_collate), seed=0, device=CPU)
    tree = batches.batch(np.array([7, 3]), 0)[0].tree
    assert torch.equal(tree[0], data.tensors[0][[7, 3]])
    assert batches._workers._workers == []


def test_a_tree_of_any_containers_survives_a_pipe_and_a_move() -> None:
    tree = {
        "pair": Pair(torch.arange(3), torch.tensor([[True, False]])),
        "boxes": [Boxes(torch.rand(2, 4), "cat"), Boxes(torch.empty(0, 4), "none")],
        "half": torch.rand(3).bfloat16(),
        3: None,
    }
    again = moved(unpacked(*packed(tree)), Uploads(CPU))
    assert equal(tree, again)
    assert again["boxes"][1].label == "none"
    assert isinstance(again["pair"], Pair)


def test_a_train_batch_comes_in_parts_that_are_batches_of_their_own() -> None:
    batches = OwnBatches(OwnData(Ragged(), pad), seed=0, device=CPU)
    parts, _ = PartedBatches(batches, 2).batch(np.array([1, 2, 3, 13]), 0)
    batches.close()
    assert [part.tree["names"] for part in parts] == [["example 1", "example 2"], ["example 3", "example 13"]]


class Broken(Ragged):
    def __getitem__(self, place: int) -> dict[str, Any]:
        raise KeyError("no such page")


def refuse(items: list[Any]) -> Any:
    raise ValueError("ragged")


def test_an_error_in_the_users_code_is_told_with_its_example() -> None:
    with pytest.raises(DataError, match=r"training example 5 could not be read.*(?s:.)*no such page"):
        batch_of([5], dataset=Broken())
    with pytest.raises(DataError, match=r"collate function failed on training examples .*(?s:.)*ragged"):
        batch_of([5], collate=refuse)


def test_classes_are_known_where_the_data_set_tells_them() -> None:
    assert OwnData(vectors(8, num_classes=4), default_collate).classes.tolist() == [0, 1, 2, 3] * 2  # type: ignore[union-attr]
    assert OwnData(Ragged(), pad).classes is None
