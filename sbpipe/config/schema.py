"""Every setting: its default, its limits and its one-line meaning. Knows neither files nor command lines."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from sbpipe.config.traits import TRAITS, Traits

MODES = ("pipelined", "lockstep", "fixed-lag", "inline", "data-parallel")

OWN = "own"
"""The name of data, model and loss in a user's own loop, which brings them as objects."""

# Far beyond what a run was ever asked for, and far from where memory, threads or arithmetic give way.
MOST_EXAMPLES = 10**9
MOST_STEPS = 10**9
MOST_EPOCHS = 10**6
MOST_SECONDS = 1e8
MOST_THREADS = 1024
MOST_SEEDS = 2**63 - 1


OWN_CODE, OWN_FILES = "the trainer's code", "the trainer's files"
"""What settings reach that only the trainer uses."""


def setting(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    reaches: str = "",
) -> Any:
    """A dataclass field with its meaning and limits (`above` excluded); `words` may stand for a number.

    `reaches` says what a text can lead out to: "code" (`module:function`) or "files". A selector follows such
    a text only where its own user wrote it; those of OWN_CODE and OWN_FILES it never looks at.
    """
    metadata = {
        "meaning": meaning,
        "choices": choices,
        "words": words,
        "low": low,
        "high": high,
        "above": above,
        "reaches": reaches,
    }
    # Each config gets a list or table of its own: a shared default would be changed for all by one.
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


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
class SelectionConfig:
    """Which candidates are kept."""

    policy: str = setting(
        "spread",
        "the rule by which candidates are kept",
        choices=tuple(TRAITS),
    )
    score: str = setting(
        "loss",
        "what a score is: the loss, or the norm of its gradient at the outputs (cross_entropy)",
        choices=("loss", "gradient"),
    )
    irreducible: str = setting(
        "", "rho: file of irreducible losses, made by `sbpipe score irreducible`", reaches="files"
    )
    keep: float | str = setting(
        "auto",
        "target share of candidates kept; the exponent of the cdf is 1/keep - 1. auto: pipelined, with a "
        "policy that names bounds, as many candidates per step as the selectors can score in a step's time; "
        "else 1/3",
        words=("auto",),
        low=0.001,
        high=1.0,
    )
    history: int = setting(1024, "number of last scores the cdf is taken over", low=1, high=2**20)
    table: int = setting(
        2**22,
        "rows of the trainer's score table, 20 to 28 bytes each, also in checkpoints; of a data set of more "
        "examples it holds about so many of the last candidates: fills and stale-scores know nothing of the "
        "others, and class counts are left out",
        low=1024,
        high=MOST_EXAMPLES,
    )
    warmup: int = setting(
        0,
        "candidates trained on unselected at the start; -1 = until the history is full",
        low=-1,
        high=10**12,
    )
    anneal: float = setting(0.0, "last share of the run trained on everything", low=0.0, high=1.0)
    unbiased: float = setting(
        0.0,
        "weight trained examples by keep / chance, so that the mean gradient is that of all; the greatest "
        "weight, 0 = off",
        low=0.0,
        high=1e6,
    )
    reuse_epochs: int = setting(
        1,
        "candidates are scored in every n-th epoch, and judged by remembered scores in between",
        low=1,
        high=MOST_EPOCHS,
    )
    reuse_by: str = setting(
        "last",
        "reuse: an example's last score, an exponentially weighted average of them, or what a Gaussian "
        "process predicts from them",
        choices=("last", "average", "gaussian"),
    )
    floor: int = setting(
        0,
        "epochs in which every example is kept at least once; 0 = some may never be",
        low=0,
        high=MOST_EPOCHS,
    )
    outliers: str = setting(
        "keep",
        "scores beyond outlier_quantile of the recent ones: keep, clip (count as the quantile) or skip",
        choices=("keep", "clip", "skip"),
    )
    outlier_quantile: float = setting(
        0.99, "outliers: quantile of the recent scores above which a score is one", above=0.0, high=1.0
    )
    history_by: str = setting(
        "all",
        "what a score is ranked among: all scores, or those of its class (class balance)",
        choices=("all", "class"),
    )
    ramp: bool = setting(True, "steady: choose uniformly at first, more sharply as the loss falls")
    reweight: bool = setting(
        True,
        "steady: weight each trained example by keep probability of its fresh loss / of its old score",
    )
    soften: float = setting(
        0.0,
        "steady: share of uniform selection mixed into the proposal, not into the target",
        low=0.0,
        high=1.0,
    )
    guard: bool = setting(True, "spread, steady: choose less sharply while the loop swings")
    trust: bool = setting(
        True,
        "spread, steady: choose uniformly while scores say nothing about fresh losses, the more so the more "
        "labels look wrong; spread: pass over those that are probably wrong",
    )
    late: str = setting(
        "fill",
        "pipelined: a train batch that is not whole when the loop needs it is filled from the line, or "
        "waited for",
        choices=("fill", "wait"),
    )
    fallback: str = setting(
        "stale-scores",
        "who selects when no selector is left; the first two also say how a batch is filled",
        choices=("stale-scores", "uniform", "wait", "fail"),
    )

    @property
    def traits(self) -> Traits:
        """What sets the policy apart from others."""
        return TRAITS[self.policy]

    @property
    def keep_rate(self) -> float:
        """The share of candidates that the policy is meant to keep; of "auto", the one it starts from."""
        if self.traits.keeps_all:
            return 1.0
        return self.traits.keep_start if isinstance(self.keep, str) else self.keep


@dataclass(frozen=True)
class SyncConfig:
    """How far the selector may lag."""

    interval: int | str = setting(
        1,
        "steps between two publishes of the weights; auto = as often as costs the trainer 1 % of its time "
        "and the selector can follow (1 under a clock)",
        low=1,
        high=10**6,
        words=("auto",),
    )
    fast_interval: int = setting(
        1,
        "steps between two publishes of the fast parts (normalisation, biases, classifier head); 0 = never "
        "apart from the whole",
        low=0,
        high=10**6,
    )
    depth: int | str = setting(
        2,
        "pipelined: train batches leased and not yet trained; auto = 2, more where a lease's way there and "
        "back takes longer than a step",
        low=1,
        high=1024,
        words=("auto",),
    )
    max_staleness: int = setting(
        0, "largest staleness trained on, in steps; 0 = no bound", low=0, high=MOST_STEPS
    )
    lag: int = setting(1, "fixed-lag: steps between scoring and training", low=0, high=200)
    dtype: str = setting(
        "fp32", "floating-point format of published weights", choices=("fp32", "bf16", "fp16")
    )
    shared_memory: bool = setting(True, "hand weights over in shared memory where both roles see it")
    direct: bool = setting(
        False,
        "hand weights from the trainer's CUDA device to the selector's on the same host, not through the "
        "host; never run on hardware",
    )


@dataclass(frozen=True)
class SelectorConfig:
    """The selector's device."""

    device: str = setting(
        "auto",
        "the selector's device: auto, cpu, cuda:1, ...; of several selectors of `sbpipe run`, one name each, "
        "separated by commas",
    )
    precision: str = setting(
        "auto",
        "precision of the scoring forward pass; auto = fp32 at first, then the fastest here that ranks like "
        "it, measured between the first leases (fp32 for good under a clock or with selector.compile)",
        choices=("fp32", "bf16", "fp16", "int8", "auto"),
    )
    statistics: str = setting(
        "auto",
        "what BatchNorm layers score with: auto (stored statistics, unless the model is blind with them), "
        "stored, or candidates (estimated anew after new weights)",
        choices=("auto", "stored", "candidates"),
    )
    min_agreement: float = setting(
        0.95,
        "rank correlation with fp32 below which coarse scores are warned of, and auto steps back up",
        low=0.0,
        high=1.0,
    )
    batch_size: int | str = setting(
        0,
        "candidates per scoring forward pass; 0 = half the train batch size, auto = that at first, then "
        "measured as precision is",
        low=0,
        high=2**20,
        words=("auto",),
    )
    scale: float = setting(
        1.0, "images are scored at this share of their height and width", low=0.01, high=1.0
    )
    compile: bool | str = setting(
        False,
        "compile the scoring forward pass with torch.compile (not int8); reduce-overhead = in that mode of "
        "its own, with CUDA graphs; graph = do not compile it, but record it once as a graph of the device",
        words=("reduce-overhead", "graph"),
    )
    threads: int = setting(
        0,
        "CPU threads of the selector; 0 = half of the cores, or, where auto puts it on the CPU beside a "
        "trainer on an accelerator, all cores but two and one for each of data.workers, if that is more",
        low=0,
        high=MOST_THREADS,
    )
    allow: list[str] = setting(
        [],
        "what a trainer may have this selector run and read beside what its own settings name: "
        "module:function, files, folders; $SBPIPE_ALLOW adds to it, separated by commas",
    )
    events: str = setting(
        "",
        "folder of this selector's events; without it the run directory in link.connect, or nowhere where "
        "that is an address",
    )

    @property
    def devices(self) -> list[str]:
        """The names in `device`: one, or one for each selector."""
        return [name.strip() for name in self.device.split(",")]


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


@dataclass(frozen=True)
class LinkConfig:
    """The wire."""

    bind: str = setting(
        "auto",
        "where the trainer listens; auto = a Unix socket that only this user can reach; tcp://HOST:PORT is "
        "always encrypted and takes the next port too; port 0 = any free pair",
    )
    connect: str = setting(
        "auto",
        "where the selector finds the trainer: a run directory or an address; auto = the one trainer of this "
        "user on this host",
    )
    keys: str = setting(
        "", "CURVE keys made by `sbpipe keys`, a folder or a .key file; on one host a run makes its own"
    )
    heartbeat_s: float = setting(0.5, "seconds between heartbeats", low=0.01, high=86_400.0)
    lost_after_s: float = setting(4.0, "silence after which a peer is lost", low=0.02, high=86_400.0)
    hung_after_s: float = setting(
        60.0,
        "seconds without progress on a lease after which a selector counts as hung",
        low=0.02,
        high=MOST_SECONDS,
    )
    wait_s: float = setting(600.0, "how long a role waits for its first peer", above=0.0, high=MOST_SECONDS)
    orphan_timeout_s: float = setting(
        60.0, "how long a selector waits for a lost trainer to come back", above=0.0, high=MOST_SECONDS
    )
    chunk_mib: float = setting(
        2.0, "size of one piece of a weights transfer between hosts", low=0.001, high=64.0
    )


@dataclass(frozen=True)
class TrackersConfig:
    """Where the run's numbers go besides its own files."""

    tensorboard: bool = setting(False, "scalars for TensorBoard, in the run directory's tensorboard/")
    wandb: bool = setting(False, "scalars to Weights & Biases; WANDB_MODE=offline keeps them here")
    mlflow: bool = setting(
        False, "scalars to MLflow; without MLFLOW_TRACKING_URI, in the run directory's mlruns/"
    )
    project: str = setting("sbpipe", "wandb: project; mlflow: experiment")


@dataclass(frozen=True)
class Config:
    """One run, wholly described."""

    mode: str = setting("pipelined", "how the roles are clocked", choices=MODES)
    seed: int = setting(0, "seed of everything random in the run", low=0, high=MOST_SEEDS)
    data: DataConfig = field(default_factory=DataConfig)
    view: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    link: LinkConfig = field(default_factory=LinkConfig)
    trackers: TrackersConfig = field(default_factory=TrackersConfig)

    @property
    def score_batch_size(self) -> int:
        """Candidates per scoring forward pass.

        By default half a train batch: a lease ends with the pass that kept enough, so shorter passes
        overshoot less, which means less lag, and from some 64 candidates on they cost no more per candidate
        on a CPU. A selector that measures its own ("auto") starts from it.
        """
        given = self.selector.batch_size
        return given if isinstance(given, int) and given else max(1, self.train.batch_size // 2)

    @property
    def first_precision(self) -> str:
        """What a selector scores its first leases in; under a clock, or compiled, all of them."""
        return "fp32" if self.selector.precision == "auto" else self.selector.precision

    @property
    def may_measure(self) -> bool:
        """Whether "auto" is decided by measuring in the course of the run.

        Under a logical clock a run repeats bit for bit, and what a measurement chooses depends on timing.
        With `selector.compile` each choice would have to be compiled to be measured.
        """
        return not self.is_clocked and not self.selector.compile

    @property
    def is_clocked(self) -> bool:
        """Whether a logical clock, not arrival, decides which weights score which batch."""
        return self.mode != "pipelined"

    @property
    def must_repeat(self) -> bool:
        """Whether runs shall repeat bit for bit; data-parallel is there for its speed, and nobody scores."""
        return self.is_clocked and self.mode != "data-parallel"

    @property
    def fills(self) -> bool:
        """Whether a batch that is late is filled: under a logical clock nothing is ever late."""
        return self.selection.late == "fill" and not self.is_clocked

    @property
    def keep_bounds(self) -> tuple[float, float] | None:
        """Between what the keep rate follows the selectors' speed; None = it stays where it is."""
        # Under a clock a run must repeat bit for bit, and speed does not.
        is_auto = self.selection.keep == "auto" and not self.is_clocked
        return self.selection.traits.keep_bounds if is_auto else None

    @property
    def is_one_process(self) -> bool:
        """Whether selection runs in the trainer's process."""
        return self.mode in ("inline", "data-parallel")

    @property
    def num_devices(self) -> int:
        """Devices that the run holds, busy or not."""
        return self.num_ranks if self.is_one_process else self.num_ranks + 1

    @property
    def num_ranks(self) -> int:
        """Processes that train, each on its share of every train batch."""
        return self.train.ranks or (2 if self.mode == "data-parallel" else 1)

    @property
    def lag(self) -> int:
        """Steps between scoring and training that the logical clock prescribes."""
        return self.sync.lag if self.mode == "fixed-lag" else 0

    @property
    def sync_interval(self) -> int:
        """Steps between publishes at the beginning; lockstep and inline sync every step by definition."""
        given = self.sync.interval
        return given if isinstance(given, int) and self.mode in ("pipelined", "fixed-lag") else 1

    @property
    def sync_depth(self) -> int:
        """Train batches leased and not yet trained, at the beginning."""
        return self.sync.depth if isinstance(self.sync.depth, int) else 2

    @property
    def fast_interval(self) -> int:
        """Steps between publishes of the fast parts; 0 where the whole comes as often, or nobody scores."""
        # With the whole as often, the fast parts would be sent twice. An interval that moves may grow.
        may_grow = self.sync.interval == "auto" and not self.is_clocked
        is_apart = may_grow or self.sync.fast_interval < self.sync_interval
        return self.sync.fast_interval if is_apart and self.selection.traits.needs_scores else 0


# From the annotations, so that a new section is known to parser, writer and manual at once.
SECTIONS: dict[str, type[Any]] = {
    name: kind for name, kind in get_type_hints(Config).items() if hasattr(kind, "__dataclass_fields__")
}


RETIRED = {
    "schedule.by": "progress always counts what ends the run",
    "train.replicas": "train.ranks says how many processes share a batch, in every mode",
}
"""Keys that were settings once, and why they are none any more: the files of older runs still hold them."""


def known_keys() -> dict[str, dataclasses.Field[Any]]:
    """Every dotted key and its field."""
    keys: dict[str, dataclasses.Field[Any]] = {}
    for outer in dataclasses.fields(Config):
        section = SECTIONS.get(outer.name)
        keys |= (
            {f"{outer.name}.{inner.name}": inner for inner in dataclasses.fields(section)}
            if section
            else {outer.name: outer}
        )
    return keys
