//! The embeddable service: core, listeners, recovery and shutdown behind typed verbs.
