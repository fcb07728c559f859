"""Recommendations: which defence to take for a model and its data, how strong, and at what price."""

from refiner.recommendation.candidates import CANDIDATES, TABLE_CANDIDATES
from refiner.recommendation.price import Price
from refiner.recommendation.result import Recommendation, Row
from refiner.recommendation.run_recommendation import recommend
from refiner.recommendation.search_plan import Rung, SearchPlan
from refiner.recommendation.table_recommendation import recommend_table
from refiner.recommendation.table_result import TableEvidence, TableRecommendation, TableRow, TableTarget
from refiner.recommendation.target import Evidence, Target

__all__ = [
    "CANDIDATES",
    "TABLE_CANDIDATES",
    "Evidence",
    "Price",
    "Recommendation",
    "Row",
    "Rung",
    "SearchPlan",
    "TableEvidence",
    "TableRecommendation",
    "TableRow",
    "TableTarget",
    "Target",
    "recommend",
    "recommend_table",
]
