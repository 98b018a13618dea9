"""The settings of the training itself: data, model, loss, budget, optimizer, evaluation, checkpoints."""

from dataclasses import dataclass
from typing import Any

from sbpipe.config.setting import (
    MOST_EPOCHS,
    MOST_EXAMPLES,
    MOST_SECONDS,
    MOST_SEEDS,
    MOST_STEPS,
    MOST_THREADS,
    OWN_CODE,
    OWN_FILES,
    setting,
)


@dataclass(frozen=True)
class DataConfig:
    """What is trained on."""

    name: str = setting(
        "embedded",
        "embedded, cifar10, cifar100, svhn, mnist, fashion_mnist, image_folder, arrays or module:function",
        reaches="code",
    )
    path: str = setting(
        "", "where the data set lies: a folder, or the .npz file of `arrays`", reaches="files"
    )
    download: bool = setting(False, "let torchvision fetch a missing data set")
    examples: int = setting(20_000, "embedded: number of training examples", low=1, high=10**6)
    test_examples: int = setting(4_000, "embedded: number of test examples", low=1, high=10**6)
    seed: int = setting(
        0,
        "which examples of the embedded data or of a part are drawn, and which labels are wrong",
        low=0,
        high=MOST_SEEDS,
    )
    limit: int = setting(
        0, "train on at most so many examples, drawn by data.seed; 0 = all", low=0, high=MOST_EXAMPLES
    )
    test_limit: int = setting(
        0, "test on at most so many examples, drawn by data.seed; 0 = all", low=0, high=MOST_EXAMPLES
    )
    validation: float = setting(
        0.0,
        "measure the error on so many training examples (below 1: a share of them), held out by data.seed, "
        "instead of on the test set; 0 = off",
        low=0.0,
        high=MOST_EXAMPLES,
    )
    label_noise: float = setting(
        0.0,
        "share of the training labels that are replaced by another class; the test set is never touched",
        low=0.0,
        high=1.0,
    )
    classes: int = setting(0, "number of classes; 0 = ask the data set", low=0, high=2**20)
    image_size: int = setting(
        224, "image_folder: side of the square that images are resized to", low=8, high=4096
    )
    workers: int = setting(2, "loader processes for data that is not held in memory", low=0, high=256)
    block: int = setting(
        0,
        "examples per shard of a data set that is read fastest shard by shard: the order shuffles shards, "
        "then the examples of a few shards at a time (data.window); 0 = every example by itself",
        low=0,
        high=MOST_EXAMPLES,
    )
    window: int = setting(
        16, "data.block: shards whose examples are mixed, and which are read at a time", low=1, high=2**16
    )
    prune: str = setting(
        "", "score file, made by `sbpipe score`, of the examples to leave out of training", reaches="files"
    )
    prune_share: float = setting(
        0.0, "share of the training examples left out, by data.prune", low=0.0, high=1.0
    )
    prune_from: str = setting(
        "low", "which are left out: those of the lowest or the highest scores", choices=("low", "high")
    )


@dataclass(frozen=True)
class ViewConfig:
    """How an example's pixels look in one epoch."""

    crop: int = setting(0, "random crop after padding by this many pixels; 0 = off", low=0, high=1024)
    flip: bool = setting(False, "random horizontal flip")
    cutout: int = setting(0, "side of a random square set to the mean; 0 = off", low=0, high=4096)
    normalise: bool = setting(True, "subtract the mean and divide by the deviation of each channel")
    score: str = setting(
        "same", "pixels the selector scores: the same as are trained on, or clean", choices=("same", "clean")
    )


@dataclass(frozen=True)
class ModelConfig:
    """What is trained."""

    name: str = setting(
        "small_cnn",
        "small_cnn, small_resnet, resnet18_cifar, wide_resnet, mobilenet_v2_cifar, densenet_cifar, "
        "torchvision's by name, or module:function",
        reaches="code",
    )
    options: dict[str, Any] = setting({}, "keyword arguments of the model's builder")


@dataclass(frozen=True)
class LossConfig:
    """What is minimised: one value per example."""

    name: str = setting(
        "cross_entropy",
        "cross_entropy, mse, bce, or module:function(outputs, targets) -> one value per example",
        reaches="code",
    )
    label_smoothing: float = setting(
        0.0, "cross_entropy: label smoothing of the trained loss", low=0.0, high=0.99
    )


@dataclass(frozen=True)
class TrainConfig:
    """How long and where the trainer works."""

    batch_size: int = setting(128, "kept examples per optimizer step", low=1, high=2**17)
    epochs: float = setting(
        6.0, "passes over the candidates; ignored when steps or seconds is set", above=0.0, high=MOST_EPOCHS
    )
    steps: int = setting(0, "optimizer steps; 0 = by epochs", low=0, high=MOST_STEPS)
    seconds: float = setting(
        0.0,
        "wall-clock budget, without measuring the test error; 0 = by epochs",
        low=0.0,
        high=MOST_SECONDS,
    )
    init_from: str = setting(
        "",
        "first weights: a run directory, checkpoint, export folder or .safetensors file, or "
        "torchvision:DEFAULT (or another name) for torchvision's own; a head of another shape stays fresh",
        reaches=OWN_FILES,
    )
    accumulate: int = setting(
        1,
        "parts that a train batch is cut into, one forward and backward pass each, for one optimizer step: "
        "less memory, the same gradient (BatchNorm sees parts)",
        low=1,
        high=1024,
    )
    ema: float = setting(
        0.0,
        "decay of a moving average of the weights, which is then what is evaluated and exported; 0 = off",
        low=0.0,
        high=0.999999,
    )
    ema_publish: bool = setting(False, "selectors score with the average of train.ema too")
    amp: str = setting("off", "mixed precision of the trainer", choices=("off", "bf16", "fp16"))
    device: str = setting("auto", "the trainer's device: auto, cpu, cuda:0, ...")
    threads: int = setting(0, "CPU threads of the trainer; 0 = half of the cores", low=0, high=MOST_THREADS)
    ranks: int = setting(
        0,
        "processes that share each train batch, one device each, which `sbpipe run` has torchrun start; 0 = "
        "one (data-parallel: two). Under torchrun itself there are as many as it started",
        low=0,
        high=4096,
    )
    ranks_wait_s: float = setting(
        1800.0, "seconds that a rank waits for another one before it gives up", low=1.0, high=MOST_SECONDS
    )
    shard: str = setting(
        "none",
        "of several ranks: none = each holds the whole model (DDP), full = each holds a share of weights, "
        "gradients and optimizer state (FSDP2)",
        choices=("none", "full"),
    )


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer."""

    name: str = setting("SGD", "any class of torch.optim")
    # Whether a rate is too high the run itself finds out, and says; the limit is that of float32.
    lr: float = setting(0.1, "peak learning rate", above=0.0, high=1e30)
    momentum: float = setting(0.9, "SGD: momentum", low=0.0, high=1.0)
    nesterov: bool = setting(True, "SGD: Nesterov momentum")
    weight_decay: float = setting(5e-4, "weight decay", low=0.0, high=1e3)
    no_decay: bool = setting(False, "no weight decay on norms and biases: parameters of one axis")
    lr_scale: dict[str, Any] = setting(
        {},
        "factors of the rate by how a parameter's name begins: {features = 0.1}; the longest name that fits "
        "counts, 0 freezes",
    )
    clip: float = setting(
        0.0, "greatest norm of a step's gradient, which is scaled down to it; 0 = off", low=0.0, high=1e30
    )
    options: dict[str, Any] = setting({}, "further keyword arguments of the optimizer")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate as a function of progress in [0, 1]; what ends the run counts as progress."""

    name: str = setting(
        "onecycle", "shape of the schedule", choices=("onecycle", "cosine", "step", "constant")
    )
    warmup: float = setting(0.15, "onecycle and cosine: share of the run spent warming up", low=0.0, high=1.0)
    milestones: list[float] = setting(
        [0.3, 0.6, 0.8], "step: progress at which the rate drops", low=0.0, high=1.0
    )
    gamma: float = setting(0.2, "step: factor of each drop", above=0.0, high=10.0)
    final: float = setting(0.0, "onecycle and cosine: last rate as a share of the peak", low=0.0, high=1.0)


@dataclass(frozen=True)
class EvalConfig:
    """When the test error is measured."""

    every: float = setting(
        1.0, "epochs of candidates between evaluations; 0 = only at the end", low=0.0, high=MOST_EPOCHS
    )
    batch_size: int = setting(500, "test examples per forward pass", low=1, high=2**20)
    metric: str = setting(
        "",
        "a measure of your own beside error and loss: module:function(outputs, targets) -> one value per "
        "test example; the mean is told under the function's name",
        reaches=OWN_CODE,
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """What survives a kill."""

    every: int = setting(100, "steps between checkpoints; 0 = only when stopped", low=0, high=MOST_STEPS)
    keep: int = setting(2, "number of checkpoints kept", low=2, high=10**6)
    whole: bool = setting(
        False,
        "of a model that is cut up (train.shard): gather it to rank 0 and write one file, where not all "
        "ranks see the run directory; else each rank writes its share there",
    )
    spare: str = setting(
        "",
        "folder for the last checkpoint and the summary, where the run directory does not take them; empty = "
        "the system's folder for temporary files",
    )
