"""The audit: how much of its victims an attack rebuilds from what a defence lets out."""

from refiner.audit.plan import Plan
from refiner.audit.report import report_page, write_report
from refiner.audit.result import AuditResult, Finding, Mean, Seconds, Tuned
from refiner.audit.run import audit
from refiner.audit.store import audit_all
from refiner.audit.tuning import Tuning
from refiner.audit.victims import Victims, load_victims

__all__ = [
    "AuditResult",
    "Finding",
    "Mean",
    "Plan",
    "Seconds",
    "Tuned",
    "Tuning",
    "Victims",
    "audit",
    "audit_all",
    "load_victims",
    "report_page",
    "write_report",
]
