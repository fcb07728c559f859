"""Metrics that compare reconstructions with originals, blind guesses, verdicts, and ROC curves."""

from refiner.metrics.assignment import assign, best_order
from refiner.metrics.blind_guesses import BlindGuess, best_guesses, blind_guess
from refiner.metrics.group_verdict import GroupVerdict, judge_group
from refiner.metrics.identification import identify
from refiner.metrics.image import mse, psnr, ssim
from refiner.metrics.likelihood import identify_by_likelihood
from refiner.metrics.metric_registry import METRICS, Metric, noise_ratio, score_all
from refiner.metrics.operating_points import TprAtFpr, balanced_accuracies, clopper_pearson, tpr_at_fpr
from refiner.metrics.perceptual import features, lpips
from refiner.metrics.ranks import Identification
from refiner.metrics.roc import Estimate, RocCurve, area_under_curve, roc_curve
from refiner.metrics.shares import Share
from refiner.metrics.thresholds import Thresholds
from refiner.metrics.verdict import Level, Verdict, judge, judge_each

__all__ = [
    "METRICS",
    "BlindGuess",
    "Estimate",
    "GroupVerdict",
    "Identification",
    "Level",
    "Metric",
    "RocCurve",
    "Share",
    "Thresholds",
    "TprAtFpr",
    "Verdict",
    "area_under_curve",
    "assign",
    "balanced_accuracies",
    "best_guesses",
    "best_order",
    "blind_guess",
    "clopper_pearson",
    "features",
    "identify",
    "identify_by_likelihood",
    "judge",
    "judge_each",
    "judge_group",
    "lpips",
    "mse",
    "noise_ratio",
    "psnr",
    "roc_curve",
    "score_all",
    "ssim",
    "tpr_at_fpr",
]
