"""Is selection worth anything on text? A classifier and a small language model on Python's own library.

Each is trained in a plain loop with a selector beside it (scores one step late, on a logical clock, so that
a run repeats), and with random selection for as many updates and for twice as many, the rate decayed inside
each budget. Prints one line per run, then a table.

    python examples/text_worth.py classifier --seeds 3
    python examples/text_worth.py language --seeds 3
"""

import argparse
import math
import random
import re
import statistics
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import sbpipe

WORDS = 4096
"""Words that are known; others are one."""
PACKAGES = (
    "asyncio",
    "distutils",
    "email",
    "http",
    "idlelib",
    "lib2to3",
    "logging",
    "multiprocessing",
    "tkinter",
    "unittest",
    "urllib",
    "xml",
)


def library() -> dict[str, list[str]]:
    """The words of every source file of the standard library, by its path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "encodings", "__pycache__"}
    paths = [path for path in sorted(root.rglob("*.py")) if not skipped & set(path.relative_to(root).parts)]
    return {
        str(path.relative_to(root)): re.findall(
            r"[A-Za-z]+|[^\sA-Za-z]", path.read_text(encoding="utf-8", errors="ignore")
        )
        for path in paths
    }


class Pieces(Dataset):
    """Stretches of words, each with the number of its package."""

    def __init__(self, pieces: list[tuple[list[int], int]]) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, place: int) -> dict:
        words, package = self.pieces[place]
        return {"words": words, "package": package}


def cut(
    files: dict[str, list[str]], length: tuple[int, int], packages: tuple[str, ...] = ()
) -> tuple[Pieces, Pieces]:
    """Train and test pieces of ragged length; a tenth of the files is for testing."""
    known = {
        word: place + 2
        for place, (word, _) in enumerate(
            Counter(w for words in files.values() for w in words).most_common(WORDS - 2)
        )
    }
    train, test, draw = [], [], random.Random(0)
    for name, words in files.items():
        package = name.split("/")[0]
        if packages and package not in packages:
            continue
        into = test if draw.random() < 0.1 else train
        numbers, start = [known.get(word, 1) for word in words], 0
        while start + length[0] < len(numbers):
            stop = start + draw.randint(*length)
            into.append((numbers[start:stop], packages.index(package) if packages else 0))
            start = stop
    return Pieces(train), Pieces(test)


def pad(items: list[dict]) -> dict:
    longest = max(len(item["words"]) for item in items)
    words = torch.zeros(len(items), longest, dtype=torch.long)
    for row, item in zip(words, items, strict=True):
        row[: len(item["words"])] = torch.tensor(item["words"])
    return {
        "x": {"words": words, "mask": (words > 0).float()},
        "package": torch.tensor([item["package"] for item in items]),
    }


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64, padding_idx=0)
        self.mix = nn.Conv1d(64, 128, 5, padding=2)
        self.head = nn.Sequential(nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, len(PACKAGES)))

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mixed = F.gelu(self.mix(self.embed(words).transpose(1, 2))) * mask[:, None]
        return self.head(mixed.amax(dim=2))


class Language(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = words.shape[1]
        hidden = self.embed(words) + self.place(torch.arange(count))
        causal = torch.full((count, count), float("-inf")).triu(1)
        return self.head(self.norm(self.layers(hidden, mask=causal)))


def classifier_losses(model: nn.Module, batch: dict) -> torch.Tensor:
    return F.cross_entropy(model(**batch["x"]), batch["package"], reduction="none")


def language_losses(model: nn.Module, batch: dict) -> torch.Tensor:
    """The mean over the words of each piece."""
    words, mask = batch["x"]["words"], batch["x"]["mask"][:, 1:]
    logits = model(words[:, :-1], batch["x"]["mask"][:, :-1])
    losses = F.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none")
    return (losses * mask).sum(1) / mask.sum(1)


TASKS = {
    "classifier": (Classifier, classifier_losses, (12, 24), PACKAGES, 64, 500, 2e-3),
    "language": (Language, language_losses, (24, 48), (), 32, 500, 2e-3),
}


@torch.no_grad()
def measure(model: nn.Module, losses, test: Pieces, is_language: bool) -> float:
    """The test error in percent, or the perplexity of the words."""
    model.eval()
    total = wrong = 0.0
    for batch in DataLoader(test, 256, collate_fn=pad):
        if is_language:
            counts = batch["x"]["mask"][:, 1:].sum(1)
            wrong += float((losses(model, batch) * counts).sum())
            total += float(counts.sum())
        else:
            wrong += float((model(**batch["x"]).argmax(1) != batch["package"]).sum())
            total += len(batch["package"])
    return math.exp(wrong / total) if is_language else 100 * wrong / total


def run(task: str, policy: str, updates: int, seed: int, data: tuple[Pieces, Pieces]) -> float:
    make, losses, _, _, batch_size, _, rate = TASKS[task]
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates, pct_start=0.1)
    mode = "inline" if policy == "random" else "fixed-lag"
    with (
        tempfile.TemporaryDirectory() as folder,
        sbpipe.select(
            DataLoader(data[0], batch_size, collate_fn=pad, num_workers=1),
            model,
            optimizer,
            losses=losses,
            keep=0.25,
            run_dir=Path(folder) / "run",
            settings={"mode": mode, "selection.policy": policy, "seed": seed},
        ) as loader,
    ):
        done = 0
        while done < updates:
            for batch in loader:
                model.train()
                loader.weigh(losses(model, batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                done += 1
                if done == updates:
                    break
    return measure(model, losses, data[1], task == "language")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--policies", default="spread,steady")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _, _, length, packages, _, updates, _ = TASKS[arguments.task]
    updates = arguments.updates or updates
    data = cut(library(), length, packages)
    unit = "perplexity" if arguments.task == "language" else "% test error"
    sizes = f"{len(data[0]):,} pieces to train on, {len(data[1]):,} to test on"
    print(f"{arguments.task}: {sizes}; {unit} after {updates} updates", flush=True)
    arms = [("random", 1), ("random", 2), *((policy, 1) for policy in arguments.policies.split(","))]
    found: dict[tuple[str, int], list[float]] = {arm: [] for arm in arms}
    for seed in range(arguments.seeds):
        for policy, times in arms:
            found[policy, times].append(run(arguments.task, policy, times * updates, seed, data))
            print(f"  seed {seed}  {policy} x{times}: {found[policy, times][-1]:.2f}", flush=True)
    for (policy, times), values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        each = ", ".join(f"{value:.2f}" for value in values)
        print(f"{policy:>8} x{times}  {statistics.mean(values):.2f} ± {spread:.2f}  ({each})")


if __name__ == "__main__":
    main()
