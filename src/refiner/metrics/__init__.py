"""How much of an original is in a reconstruction, and what a blind guess would have had."""

from refiner.metrics.assignment import assign, best_order
from refiner.metrics.blind import BlindGuess, best_guesses, blind_guess
from refiner.metrics.group import GroupVerdict, judge_group
from refiner.metrics.identification import Identification, identify
from refiner.metrics.image import mse, psnr, ssim
from refiner.metrics.measures import MEASURES, Measure, measure_all, noise_ratio
from refiner.metrics.perceptual import features, lpips
from refiner.metrics.thresholds import Thresholds
from refiner.metrics.verdict import Level, Verdict, judge, judge_each

__all__ = [
    "MEASURES",
    "BlindGuess",
    "GroupVerdict",
    "Identification",
    "Level",
    "Measure",
    "Thresholds",
    "Verdict",
    "assign",
    "best_guesses",
    "best_order",
    "blind_guess",
    "features",
    "identify",
    "judge",
    "judge_each",
    "judge_group",
    "lpips",
    "measure_all",
    "mse",
    "noise_ratio",
    "psnr",
    "ssim",
]
