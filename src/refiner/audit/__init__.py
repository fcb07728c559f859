"""The audit: how well an attack reconstructs the victims' data from the uploads of a defence."""

from refiner.audit.attribute import (
    AttributeAudit,
    AttributeClients,
    audit_attribute,
    load_attribute_clients,
    write_attribute_report,
)
from refiner.audit.auto_attacks import undefended_plans, working_attacks
from refiner.audit.duration import Duration, estimate_duration
from refiner.audit.from_robust import RobustEstimation
from refiner.audit.membership import (
    MembershipAudit,
    MembershipImages,
    Training,
    audit_membership,
    load_membership_images,
    write_membership_report,
)
from refiner.audit.plan import Plan
from refiner.audit.protocol import Protocol
from refiner.audit.report import report_page, write_report
from refiner.audit.result import AuditResult
from refiner.audit.result_folder import audit_all
from refiner.audit.result_records import Control, Finding, FromRobust, Mean, Seconds, TuningResult
from refiner.audit.run_audit import audit
from refiner.audit.table import FeatureError, TableAudit, audit_table
from refiner.audit.tuning import Tuning
from refiner.audit.victims import Victims, load_labelled_images, load_victims
from refiner.inference.label_pairs import pair_by_label

__all__ = [
    "AttributeAudit",
    "AttributeClients",
    "AuditResult",
    "Control",
    "Duration",
    "FeatureError",
    "Finding",
    "FromRobust",
    "Mean",
    "MembershipAudit",
    "MembershipImages",
    "Plan",
    "Protocol",
    "RobustEstimation",
    "Seconds",
    "TableAudit",
    "Training",
    "Tuning",
    "TuningResult",
    "Victims",
    "audit",
    "audit_all",
    "audit_attribute",
    "audit_membership",
    "audit_table",
    "estimate_duration",
    "load_attribute_clients",
    "load_labelled_images",
    "load_membership_images",
    "load_victims",
    "pair_by_label",
    "report_page",
    "undefended_plans",
    "working_attacks",
    "write_attribute_report",
    "write_membership_report",
    "write_report",
]
