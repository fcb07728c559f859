"""The audit of tabular data: how well the rows of a table can be reconstructed from uploads."""

from refiner.audit.table.audit import audit_table
from refiner.audit.table.result import FeatureError, TableAudit

__all__ = ["FeatureError", "TableAudit", "audit_table"]
