//! The HTTP API over the service.
