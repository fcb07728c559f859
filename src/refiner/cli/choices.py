"""The names that `--help` shows, without importing what they name; tests compare them."""

ATTACKS = (
    "dlg",
    "idlg",
    "inverting",
    "inverting-paper",
    "gradinversion",
    "gradinversion-paper",
    "ggl",
    "ggl-paper",
    "linear",
    "analytic",
    "april",
    "learned",
    "denoiser",
    "adaptive",
    "imprint",
    "loki",
    "trap-weights",
    "folds",
    "spear",
    "activations",
)
CAPABILITIES = ("labels", "statistics", "generator", "public", "defense", "changed_model")
DATASETS = (
    "cifar10",
    "cifar100",
    "svhn",
    "tiny-imagenet",
    "pathmnist",
    "dermamnist",
    "ham10000",
    "lfw",
)
DEFENSES = (
    "none",
    "refiner",
    "refiner-light",
    "refiner-paper",
    "dp-gaussian",
    "dp-laplace",
    "gq",
    "pruning",
    "soteria",
    "recup",
)
MEMBERSHIP = ("alignment", "likelihood", "loss", "lira", "white-box")
MODELS = ("lenet", "mlp", "resnet10", "resnet18", "resnet34", "vit")
SERVERS = ("fedavg", "fedavgm", "fedadam")
