"""The errors of refiner: each message is one line that says what, why and what would be right."""


class RefinerError(Exception):
    """Base of every error that refiner raises on purpose."""


class SettingError(RefinerError, ValueError):
    """A setting has the wrong type or lies outside its range."""


class DataError(RefinerError, ValueError):
    """Data, labels or files are not what the call needs."""


class UnsupportedModelError(RefinerError, TypeError):
    """A model holds a module that can't be differentiated twice or that mixes victims."""


class ProtectionError(RefinerError, RuntimeError):
    """A defence could not protect; nothing left the client."""


class ThreatModelError(RefinerError, ValueError):
    """An attack asks for more than its threat model grants."""
