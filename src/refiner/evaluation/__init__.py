"""The evaluation network, which estimates the noise ratio of an image: its training and its test."""

from refiner.evaluation.network import EvaluationNetwork
from refiner.evaluation.noise_mixing import NoiseRatioScores, mix_with_noise, score_noise_ratios
from refiner.evaluation.training import EvaluationTrainingSettings, train

__all__ = [
    "EvaluationNetwork",
    "EvaluationTrainingSettings",
    "NoiseRatioScores",
    "mix_with_noise",
    "score_noise_ratios",
    "train",
]
