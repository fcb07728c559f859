"""The named sources: what each is, in which forms it is read, and where it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from refiner.checks import nearest
from refiner.data.download import Published
from refiner.data.npm import FILE as NPM_FILE
from refiner.data.readers.archive import is_archive
from refiner.data.readers.cifar import read_cifar10, read_cifar10_images, read_cifar100
from refiner.data.readers.lfw import read_lfw
from refiner.data.readers.medmnist import medmnist
from refiner.data.readers.raw import Raw, Reader
from refiner.data.readers.sheets import sheets
from refiner.data.readers.svhn import read_svhn
from refiner.data.readers.tiny_imagenet import read_tiny_imagenet
from refiner.errors import DataError

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"
_ZENODO = "https://zenodo.org/records/10519652/files"
_SKIN = (
    "actinic keratoses",
    "basal cell carcinoma",
    "benign keratosis",
    "dermatofibroma",
    "melanoma",
    "melanocytic nevi",
    "vascular lesions",
)


@dataclass(frozen=True)
class Source:
    """A named source: its classes, the side of its images, how many there are, and how it is brought."""

    title: str
    classes: int
    size: int
    counts: Mapping[str, int]
    """Of the complete set; what is brought may be a part of it."""
    licence: str
    forms: Mapping[str, Reader]
    """The layouts in which its files are read, in words."""
    published: tuple[Published, ...] = ()
    npm: bool = False
    class_names: tuple[str, ...] = ()

    @property
    def downloads(self) -> tuple[Published, ...]:
        """The files that are fetched from their official address."""
        return tuple(item for item in self.published if item.url)


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "CIFAR-10",
        10,
        32,
        {"train": 50_000, "test": 10_000},
        "none stated",
        {
            "cifar-10-python.tar.gz or its folder": read_cifar10,
            f"{NPM_FILE} or its folder": read_cifar10_images,
        },
        (
            Published(
                "cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                "its page",
                f"{_TORONTO}/cifar-10-python.tar.gz",
            ),
        ),
        npm=True,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
    ),
    "cifar100": Source(
        "CIFAR-100",
        100,
        32,
        {"train": 50_000, "test": 10_000},
        "none stated",
        {
            "cifar-100-python.tar.gz or its folder": read_cifar100,
            "a folder of cifar100_train_0.webp … and cifar100_labels.npz": sheets("cifar100"),
        },
        (
            Published(
                "cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                "its page",
                f"{_TORONTO}/cifar-100-python.tar.gz",
            ),
        ),
    ),
    "svhn": Source(
        "SVHN, cropped digits",
        10,
        32,
        {"train": 73_257, "test": 26_032},
        "non-commercial",
        {
            "train_32x32.mat, test_32x32.mat or a folder of them": read_svhn,
            "a folder of svhn_train_0.webp … and svhn_labels.npz": sheets("svhn"),
        },
        tuple(
            Published(f"{split}_32x32.mat", md5, "torchvision", f"{_STANFORD}/{split}_32x32.mat")
            for split, md5 in (
                ("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test", "eb5a983be6a315427106f1b164d9cef3"),
            )
        ),
        class_names=tuple("0123456789"),
    ),
    "tiny-imagenet": Source(
        "Tiny-ImageNet",
        200,
        64,
        {"train": 100_000, "val": 10_000},
        "ImageNet's terms: research",
        {
            "tiny-imagenet-200.zip or its folder": read_tiny_imagenet,
            "tiny_imagenet_val_jpegs.npz": sheets("tiny-imagenet"),
        },
    ),
    "pathmnist": Source(
        "PathMNIST, tissue",
        9,
        28,
        {"train": 89_996, "val": 10_004, "test": 7_180},
        "CC BY 4.0",
        {"pathmnist.npz, or a part of it as pathmnist_….npz": medmnist("pathmnist")},
        (
            Published(
                "pathmnist.npz",
                "a8b06965200029087d5bd730944a56c1",
                "MedMNIST",
                f"{_ZENODO}/pathmnist.npz?download=1",
            ),
        ),
        class_names=(
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "adenocarcinoma epithelium",
        ),
    ),
    "dermamnist": Source(
        "DermaMNIST, skin at 28×28",
        7,
        28,
        {"train": 7_007, "val": 1_003, "test": 2_005},
        "CC BY-NC 4.0",
        {"dermamnist.npz": medmnist("dermamnist")},
        (
            Published(
                "dermamnist.npz",
                "0744692d530f8e62ec473284d019b0c7",
                "MedMNIST",
                f"{_ZENODO}/dermamnist.npz?download=1",
            ),
        ),
        class_names=_SKIN,
    ),
    "ham10000": Source(
        "HAM10000, skin at 32×32",
        7,
        32,
        {"train": 8_014, "test": 2_001},
        "CC BY-NC 4.0",
        {"a folder of ham10000_32_0.webp … and ham10000_labels.npz": sheets("ham10000")},
        class_names=_SKIN,
    ),
    "lfw": Source(
        "LFW, faces",
        5749,
        32,
        {"all": 13_233},
        "research; real people",
        {
            "lfw-deepfunneled.tgz or a folder of people": read_lfw,
            "a folder of lfw_32_0.webp … and lfw_labels.npz": sheets("lfw"),
        },
        (Published("lfw-deepfunneled.tgz", "68331da3eb755a505a502b5aacb3c201", "torchvision"),),
    ),
}
"""Every source that `refiner data get` knows, by name."""

SHORT = {"path": "pathmnist", "derma": "dermamnist"}
"""Other names for some of them."""


def find(name: str) -> tuple[str, Source]:
    """A source by its name or a short one.

    >>> find("path")[0], find("cifar10")[1].classes
    ('pathmnist', 10)
    >>> find("cifar-10")
    Traceback (most recent call last):
    refiner.errors.DataError: data = 'cifar-10': unknown; did you mean 'cifar10'? Known: sample, cifar10, ...
    """
    own = SHORT.get(name, name)
    if own not in SOURCES:
        known = ["sample", *SOURCES, "folder:PATH", "npz:PATH", "parquet:PATH"]
        raise nearest(name, known, "data")
    return own, SOURCES[own]


def read_files(name: str, path: Path) -> Mapping[str, Raw]:
    """The splits of a source that lie at a file or in a folder, in the first of its forms that fits.

    A folder may hold an archive of it, too.

    >>> read_files("cifar10", Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    source = SOURCES[name]
    archives = [item.file for item in source.published] + ([NPM_FILE] if source.npm else [])
    inside = [path / file for file in archives] if path.is_dir() else []
    for place in (path, *filter(is_archive, inside)):
        for read in source.forms.values():
            if found := read(place):
                return found
    raise DataError(f"{path}: no {source.title} to be read there, expected {'; or '.join(source.forms)}")
