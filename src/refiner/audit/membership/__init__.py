"""Membership inference: do uploads tell which samples a client trained on?"""

from refiner.audit.membership.audit import audit_membership
from refiner.audit.membership.images import MembershipImages, load_membership_images
from refiner.audit.membership.report import write_membership_report
from refiner.audit.membership.result import MembershipAudit
from refiner.audit.membership.uploads import Training

__all__ = [
    "MembershipAudit",
    "MembershipImages",
    "Training",
    "audit_membership",
    "load_membership_images",
    "write_membership_report",
]
