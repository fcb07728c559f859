"""Attribute inference: do uploads reveal a property of a client that is not the task?"""

from refiner.audit.attribute.audit import audit_attribute
from refiner.audit.attribute.clients import AttributeClients, load_attribute_clients
from refiner.audit.attribute.report import write_attribute_report
from refiner.audit.attribute.result import AttributeAudit

__all__ = [
    "AttributeAudit",
    "AttributeClients",
    "audit_attribute",
    "load_attribute_clients",
    "write_attribute_report",
]
