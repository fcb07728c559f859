"""The evaluation network: its shape, its training, its scores."""

from refiner.evaluation.mixing import RatioScores, mix, score_ratios
from refiner.evaluation.network import EvaluationNetwork
from refiner.evaluation.training import Training, train

__all__ = ["EvaluationNetwork", "RatioScores", "Training", "mix", "score_ratios", "train"]
