"""The settings of selecting beside it: policy, sync, selectors, the link, trackers."""

from dataclasses import dataclass

from sbpipe.config.setting import MOST_EPOCHS, MOST_EXAMPLES, MOST_SECONDS, MOST_STEPS, MOST_THREADS, setting
from sbpipe.config.traits import TRAITS, Traits


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
        "policy that names bounds (spread, steady), as many candidates per step as the selectors can score "
        "in a step's time; at first, and under a clock throughout, 1/4 with spread; else 1/3",
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
        "steady, spread: share of uniform selection mixed into the proposal, not into the target",
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
        "auto",
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
        "auto",
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
